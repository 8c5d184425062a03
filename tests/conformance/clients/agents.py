"""What the tests of coding agents share: a folder to work in, a script for the model, the agent's program.

Runs in the client's own environment, whose PATH has the agent.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_S = 150
CONTENT = "Hello from the agent"
TASK = "Write the file greeting.txt."
DONE = "I have written greeting.txt."


def call(name: str, **arguments: Any) -> str:
    """A function call as models write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder of its own for one test, and the scripted service."""

    url: str
    folder: Path
    """Where the agent works."""
    home: Path
    service: Path
    """Where the scripted service reads and writes."""

    def script(self, entries: Sequence[tuple[str, str]]) -> None:
        """What the model says to a prompt that has a text; the first that fits is used."""
        (self.service / "requests.jsonl").unlink(missing_ok=True)
        text = json.dumps([{"when": when, "say": say} for when, say in entries])
        (self.service / "script.json").write_text(text)

    def requests(self, path: str) -> list[dict[str, Any]]:
        """The bodies that came to a path; none was refused."""
        lines = (self.service / "requests.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["path"] == path]
        refused = [row for row in rows if row["status"] != 200]
        assert not refused, refused[0]
        return [json.loads(row["body"]) for row in rows]

    def run(self, command: Sequence[str], **environment: str) -> str:
        """What the agent prints. Fails where it does."""
        return run(command, self.folder, self.home, environment)


def run(command: Sequence[str], folder: Path, home: Path, environment: Mapping[str, str]) -> str:
    """Runs an agent that knows only the service: nothing of the user's own settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    places = {"HOME": home, **{f"XDG_{name}_HOME": home / name for name in ("CONFIG", "DATA", "CACHE", "STATE")}}
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **{name: str(path) for name, path in places.items()}, "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout
