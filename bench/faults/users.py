"""Accounts for the service under test: a database, the server's key, and one administrator whose session it uses."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from bench.common import ROOT
from bench.postgres import running_postgres

KINDS: Final = ("sqlite", "postgres", "none")
_NAME, _PASSWORD = "bench", "the password of a bench"


@contextlib.contextmanager
def accounts_of(kind: str, folder: Path) -> Iterator[dict[str, Any] | None]:
    """The section `accounts` of a configuration, whose database is empty yet. kind: one of KINDS; None for "none"."""
    if kind == "none":
        yield None
        return
    redoubt("keygen", str(folder / "kek"))
    with contextlib.ExitStack() as stack:
        place = str(folder / "accounts.db") if kind == "sqlite" else stack.enter_context(running_postgres())
        yield {"database": place, "key": f"file:{folder / 'kek'}"}


def add_user(config: Path) -> None:
    """Adds the administrator, before the service starts."""
    redoubt("user", "add", _NAME, "--admin", "--config", str(config), lines=f"{_PASSWORD}\n")


def log_in(url: str) -> dict[str, str]:
    """The headers of the user's requests. Raises httpx.HTTPError."""
    answer = httpx.post(f"{url}/v1/auth/login", json={"name": _NAME, "password": _PASSWORD}, timeout=60)
    return {"Authorization": f"Bearer {answer.raise_for_status().json()['token']}"}


def redoubt(*arguments: str, lines: str = "") -> None:
    """Runs the command. Raises RuntimeError with what it says if it fails."""
    command = [sys.executable, "-m", "app.cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
