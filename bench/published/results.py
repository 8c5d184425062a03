"""The JSONs that the page of published figures is written from, and how a table says where its figures come from."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.places import shown_command
from bench.table.markdown import heading, row

NONE: Final = "—"
Json = Mapping[str, Any]
_OLD_MACHINES: Final = {
    "quality-": "Zen 4",
    "stages-": "Zen 4",
    "kernels-4096x4096": "Zen 4",
    "confidential-embedded-zen5": "Zen 5",
}
"""Of results that don't say theirs: bench/results/README.md does."""


@dataclass(frozen=True, slots=True)
class File:
    """One result."""

    stem: str
    result: Json

    @property
    def machine(self) -> str:
        """The processor, and the threads if they are known."""
        facts, cpu = self.result.get("machine"), str(self.result.get("cpu", ""))
        name = facts["name"] if isinstance(facts, dict) else next(
            (machine for start, machine in _OLD_MACHINES.items() if self.stem.startswith(start)), cpu
        )  # fmt: skip
        threads = self.result.get("threads")
        return f"{name}, {threads} threads" if threads else name


class Results:
    """A folder of JSONs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, name: str) -> list[File]:
        """Those called `name` or `name`-MACHINE, the newest last. Raises ValueError for a file that is no JSON."""
        pattern = re.compile(rf"{re.escape(name)}(-[a-z][\w-]*)?")
        paths = [path for path in self.folder.glob(f"{name}*.json") if pattern.fullmatch(path.stem)]
        found = [File(path.stem, _read(path)) for path in sorted(paths)]
        return sorted(found, key=lambda one: (str(one.result.get("measured_at", "")), one.stem == name))


def newest_of_each_machine(files: Sequence[File]) -> list[File]:
    return list({file.machine: file for file in files}.values())


def _read(path: Path) -> Json:
    try:
        result: Json = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): measure it again or remove it") from error
    return result


def sources(files: Sequence[File], commands: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each file: its link, its machine, day and commit, and the command.

    commands: for results that don't say it themselves, by the beginning of the stem.
    """
    lines = []
    for file in files:
        facts = [file.machine] if file.machine else []
        if "measured_at" in file.result:
            facts.append(str(file.result["measured_at"])[:10])
        name, _, dirty = str(file.result.get("commit", "")).partition("-")
        facts += [f"commit {name[:7]}{'+' if dirty else ''}"] if name else []
        command = file.result.get("command") or _command(file.stem, commands)
        left_out = [name for name, one in file.result.get("types", {}).items() if "inputs" not in one]
        facts += [f"without {', '.join(left_out)}, for lack of memory"] if left_out else []
        about = f"{', '.join(facts)}; " if facts else ""
        lines.append(f"- [`{file.stem}`](../bench/results/{file.stem}.json): {about}`{command}`")
    return lines


def _command(stem: str, commands: Mapping[str, Sequence[str]]) -> str:
    fitting = [name for name in commands if stem.startswith(name)]
    return shown_command(commands[max(fitting, key=len)]) if fitting else "see bench/results/README.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 0) -> list[str]:
    return [*heading(head, left=left), *(row(cells) for cells in rows)]


def seconds(value: float) -> str:
    """A time in the unit that reads best."""
    if value < 1:
        return f"{1000 * value:.3g} ms" if value < 0.1 else f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def mib(value: float) -> str:
    return f"{value / 2**20:,.0f}"


def spread(found: Mapping[str, float], shown: Any = "{:.2f}".format) -> str:
    """A median with its extremes, as bench.conversations.rounds writes them."""
    if found["lowest"] == found["highest"]:
        return str(shown(found["median"]))
    return f"{shown(found['median'])} ({shown(found['lowest'])} to {shown(found['highest'])})"
