"""The JSONs that the page of published figures is written from, and how a table says where its figures come from."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.table.markdown import heading, row

NONE: Final = "—"
Json = Mapping[str, Any]
NOISY: Final = 1.4
"""From here on the highest of a figure's rounds over the lowest says that others disturbed them."""
UNMEASURED: Final = ["Not measured yet."]
ANYWHERE: Final = ("quality-", "kv-error-", "answers-")
"""Beginnings of the names of results that say the same on every machine, so that theirs don't name one."""
_OLD_MACHINES: Final = {
    "quality-smollm2-135m": "Zen 4",
    "quality-methods-smollm2-135m": "Zen 4",
    "quality-longbench-smollm2-135m": "Zen 4",
    "quality-groups-smollm2-135m": "Zen 4",
    "quality-groups-gemma3-270m": "Zen 4",
    "stages-embedded-zen4": "Zen 4",
    "stages-17-embedded-zen4": "Zen 4",
    "kernels-4096x4096": "Zen 4",
    "kernels-tiers-zen4": "Zen 4",
    "ops-attention-tiers-zen4": "Zen 4",
    "ops-attention-xeon": "Xeon",
    "confidential-embedded-zen5": "Zen 5",
}
"""By stem, of results that don't say theirs: bench/results/README.md does."""
_OTHER_USES: Final = re.compile(r"kernels-4096x4096-zen4-av\w+")
"""Files that have the name of a result and are none: forced tiers."""
_BUILT_WITH: Final = re.compile(r"(\w+) = 1")
_RUN: Final = ("measured_at", "commit", "command")


@dataclass(frozen=True, slots=True)
class File:
    """One result."""

    stem: str
    result: Json

    @property
    def processor(self) -> str:
        """The processor's name; empty if it is not known."""
        facts = self.result.get("machine")
        if isinstance(facts, dict):
            return str(facts["name"])
        return "" if "measured_at" in self.result else _OLD_MACHINES.get(self.stem, str(self.result.get("cpu", "")))

    @property
    def machine(self) -> str:
        """The processor, and the threads if they are known."""
        threads = self.result.get("threads")
        return f"{self.processor}, {threads} thread{'' if threads == 1 else 's'}" if threads else self.processor


class Results:
    """A folder of JSONs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, name: str) -> list[File]:
        """Those called `name` or `name`-MACHINE, the newest last. Raises ValueError for a file that is no JSON."""
        pattern = re.compile(rf"{re.escape(name)}(-[a-z][\w-]*)?")
        paths = [
            path
            for path in self.folder.glob(f"{name}*.json")
            if pattern.fullmatch(path.stem) and not _OTHER_USES.fullmatch(path.stem)
        ]
        found = [File(path.stem, _read(path)) for path in sorted(paths)]
        return sorted(found, key=lambda one: (str(one.result.get("measured_at", "")), one.stem == name))

    def shown(self, name: str) -> list[File]:
        """What the page shows of those: each machine's newest, or the newest of all if machines make no difference."""
        files = self.of(name)
        return files[-1:] if name.startswith(ANYWHERE) else newest_of_each_machine(files)


def newest_of_each_machine(files: Sequence[File]) -> list[File]:
    """files: the newest last, and so is what is returned."""
    newest: dict[str, File] = {}
    for file in files:
        newest.pop(file.machine, None)
        newest[file.machine] = file
    return list(newest.values())


def by_machine(files: Sequence[File], make: Callable[[File], list[str]]) -> list[str]:
    """A table for each machine, the newest first and under the machine's name if there are several."""
    if not files:
        return UNMEASURED
    lines: list[str] = []
    for file in reversed(files):
        lines += ["", *([f"{file.machine}:", ""] if len(files) > 1 else []), *make(file)]
    return lines[1:]


def _read(path: Path) -> Json:
    try:
        result: Json = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): measure it again or remove it") from error
    return result


def sources(files: Sequence[File]) -> list[str]:
    """A line for each file: its link, its machine, and the day, commit and command of each run that it has."""
    lines = []
    for file in files:
        told = [file.machine] if file.machine else []
        runs = _runs(file)
        for run, types in runs.items():
            day, commit, command = run
            name, _, dirty = commit.partition("-")
            facts = [day[:10]] if day else []
            facts += [f"commit {name[:7]}{'+' if dirty else ''}"] if name else []
            about = f"{', '.join(facts)}: " if facts else ""
            which = f"{', '.join(types)}, " if len(runs) > 1 else ""
            told.append(f"{which}{about}`{command}`" if command else f"{which}{about}see bench/results/README.md")
        lines.append(f"- [`{file.stem}`](../bench/results/{file.stem}.json): {'; '.join([*told, *_lacks(file)])}")
    return lines


def _runs(file: File) -> dict[tuple[str, ...], list[str]]:
    """By day, commit and command of a run: the weight types that it measured."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for name, one in file.result.get("types", {}).items():
        if "inputs" in one:
            run = tuple(str(one.get(key) or file.result.get(key, "")) for key in _RUN)
            runs.setdefault(run, []).append(name)
    return runs or {tuple(str(file.result.get(key, "")) for key in _RUN): []}


def _lacks(file: File) -> list[str]:
    """What else a reader should know of a file: versions of others' programs, and what it has not."""
    types = file.result.get("types", {})
    told = dict.fromkeys(
        f"{name} {version}" for one in types.values() for name, version in one.get("versions", {}).items()
    )
    for one in file.result.get("servers", {}).values():
        if "build" in one:
            told[f"{one['version']}, built with {' '.join(_BUILT_WITH.findall(one['build']))}"] = None
    left_out = [name for name, one in types.items() if "left_out" in one]
    lacks = [", ".join(told)] if told else []
    lacks += [f"without {', '.join(left_out)}, for lack of memory"] if left_out else []
    asked = [name for _, _, command in _runs(file) for name in _asked_types(command)]
    absent = [name for name in dict.fromkeys(asked) if "inputs" not in types.get(name, {}) and name not in left_out]
    lacks += [f"asked for and not measured: {', '.join(absent)}"] if types and absent else []
    if "withdrawn" in file.result:
        lacks.append(f"**withdrawn**: {file.result['withdrawn']['why']}")
    return lacks


def _asked_types(command: str) -> list[str]:
    found = re.search(r"--types (\S+)", command)
    return found[1].split(",") if found else []


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
    """A median with its extremes, as bench.conversations.rounds writes them; a ~ before it if these are far apart."""
    if found["lowest"] == found["highest"]:
        return str(shown(found["median"]))
    mark = "~ " if found["highest"] > NOISY * found["lowest"] else ""
    return f"{mark}{shown(found['median'])} ({shown(found['lowest'])} to {shown(found['highest'])})"
