"""What the tests of coding agents share: a folder to work in, a script for the model, the agent's program.

Runs in the client's own environment, whose PATH has the agent. How an agent is configured, it reads in docs/agents.md.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_S = 150
CONTENT = "Hello from the agent"
TASK = "Write the file greeting.txt."
DONE = "I have written greeting.txt."
PAGE = Path(__file__).parents[3] / "docs" / "agents.md"


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
        for name in ("requests.jsonl", "prompts.jsonl"):
            (self.service / name).unlink(missing_ok=True)
        text = json.dumps([{"when": when, "say": say} for when, say in entries])
        (self.service / "script.json").write_text(text)

    def requests(self, path: str) -> list[dict[str, Any]]:
        """The bodies that came to a path; none was refused."""
        lines = (self.service / "requests.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["path"] == path]
        refused = [row for row in rows if row["status"] != 200]
        assert not refused, refused[0]
        return [json.loads(row["body"]) for row in rows]

    def steps(self, path: str) -> list[str]:
        """The functions that were called before the last request, which is a chat."""
        self.goes_on()
        messages = self.requests(path)[-1]["messages"]
        return [each["function"]["name"] for message in messages for each in message.get("tool_calls") or ()]

    def goes_on(self) -> None:
        """Fails unless the last prompt goes on from the one before, all of which the prefix cache then has."""
        *_, before, last = self.prompts()
        assert last.startswith(before)

    def prompts(self) -> list[str]:
        """What the model was given."""
        return [json.loads(line) for line in (self.service / "prompts.jsonl").read_text().splitlines()]

    def printed(self, heading: str) -> str:
        """The first block of code below a heading of the documentation, for this service and its model."""
        section = PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
        block = re.search(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert block, heading
        return block[1].replace("http://127.0.0.1:8000", self.url).replace("<model>", "tiny").replace("32768", "900000")

    def place(self, name: str, heading: str) -> Path:
        """Writes the block that is printed into a file of the user's."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.printed(heading))
        return path

    def run(self, command: Sequence[str], *, after: str = "", **environment: str) -> str:
        """What the agent prints. Fails where it does.

        after: a shell's lines that come before.
        """
        shell = ["bash", "-e", "-c", f'{after}\nexec "$@"', "bash"] if after else []
        return run([*shell, *command], self.folder, self.home, environment)


def run(command: Sequence[str], folder: Path, home: Path, environment: Mapping[str, str]) -> str:
    """Runs an agent that knows only the service: nothing of the user's own settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "HOME": str(home), "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout
