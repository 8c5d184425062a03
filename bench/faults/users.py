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
_NAME, _FIRST_PASSWORD, _PASSWORD = "bench", "the first password of a bench", "the password of a bench"


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
    redoubt("user", "add", _NAME, "--admin", "--config", str(config), lines=f"{_FIRST_PASSWORD}\n")


def log_in(url: str) -> dict[str, str]:
    """The headers of the user's requests, at the first login, which chooses a password. Raises httpx.HTTPError."""
    with httpx.Client(base_url=f"{url}/v1/auth", timeout=60) as client:
        answer = client.post("/login", json={"name": _NAME, "password": _FIRST_PASSWORD}).raise_for_status()
        headers = {"Authorization": f"Bearer {answer.json()['token']}"}
        chosen = {"password": _FIRST_PASSWORD, "new_password": _PASSWORD, "recovery_code": None, "lose_saved": True}
        client.post("/password", json=chosen, headers=headers).raise_for_status()
        return headers


def redoubt(*arguments: str, lines: str = "") -> None:
    """Runs the command. Raises RuntimeError with what it says if it fails."""
    command = [sys.executable, "-m", "app.cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
