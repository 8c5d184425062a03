"""What an operator and users of a real service with accounts do."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from app.cli import cli
from app.commands.administration import in_database
from tests.app.accounts.world import FIRST, choose
from tests.service.running import ROOT, RunningService, write_config

ROOT_PASSWORD = "the password of root"


def redoubt(*arguments: str, lines: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program."""
    command = [sys.executable, "-m", "app.cli", *arguments]
    return subprocess.run(
        command, cwd=ROOT, input=lines, capture_output=True, text=True, check=False, env=os.environ | environment
    )


def done(*arguments: str, lines: str = "", **environment: str) -> str:
    """Runs the command within this process, where all is imported: a program of its own takes a second to start."""
    result = CliRunner().invoke(cli, arguments, input=lines, env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def configure_accounts(folder: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes service.yaml for one small worker with accounts and these changes, their key, and root."""
    done("keygen", str(folder / "kek"))
    values: dict[str, Mapping[str, Any]] = {
        "engine": {"kv_memory_bytes": 200 << 20},
        "worker": {"count": 1, "cpus_per_worker": 1, "ray_num_cpus": 0.1, "warm_up_prompt_tokens": 64},
        "accounts": {"database": str(folder / "accounts.db"), "key": f"file:{folder / 'kek'}"},
    }
    write_config(folder / "service.yaml", {**values, **changes})
    added = done("user", "add", "root", "--admin", "--config", str(folder / "service.yaml"), lines=FIRST + "\n")
    assert "root has a password for one login" in added
    with in_database(folder / "service.yaml") as database:
        choose(database._accounts, "root", new=ROOT_PASSWORD)


def choose_password(url: str, name: str, password: str) -> None:
    """The first login of a user who was added with FIRST."""
    done("key", "list", "--url", url, "--as", name, lines=f"{FIRST}\n{password}\n")


def log_in(site: RunningService, name: str, password: str) -> str:
    answer = httpx.post(f"{site.url}/v1/auth/login", json={"name": name, "password": password}, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["token"])
