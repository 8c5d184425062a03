"""Reads the comparisons in a folder: each JSON of `redoubt bench compare` with the machine it was measured on.

Files from before JSONs named their machine are described in machines.toml beside them, which can also give any file a
note and name the only works that it may give to tables. Does not know tables and does not measure.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.code_age import in_minutes
from bench.compare_table import OURS

DESCRIPTIONS: Final = "machines.toml"
PREFIX: Final = "compare-"
PEERS_BEFORE: Final = "peers_before"
"""Key in a JSON: peers that only the replaced result had."""


class ResultsError(Exception):
    """A file of results can't be used; the message names it and says what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Machine:
    """A column of a table."""

    name: str
    threads: int

    @property
    def title(self) -> str:
        return f"{self.name}, {self.threads} thread{'' if self.threads == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison's JSON."""

    file: str
    """The file's name without its ending."""
    machine: Machine
    measured_at: datetime
    code_at: datetime
    """When the engine that was measured had last been changed, as far as it is known: else when it was measured."""
    result: Mapping[str, Any]
    """The JSON of `bench.compare`."""
    only: tuple[str, ...] | None
    """The works that it may give to tables; None: all."""
    note: str

    @property
    def model(self) -> str:
        """The model's name among bench.models.NAMES."""
        return str(self.result["model"])

    def gives(self, work: str) -> bool:
        """Whether tables may have its figures of a work."""
        return self.only is None or work in self.only


@dataclass(frozen=True, slots=True)
class Results:
    """All comparisons of a folder."""

    comparisons: tuple[Comparison, ...]
    about: Mapping[str, str]
    """Remarks on machines, by name."""


def read_results(folder: Path) -> Results:
    """Reads all of a folder. Raises ResultsError, OSError."""
    described = _descriptions(folder / DESCRIPTIONS)
    files = described.get("files", {})
    paths = sorted(folder.glob(f"{PREFIX}*.json"))
    gone = set(files) - {path.stem for path in paths}
    if gone:
        raise ResultsError(f"{folder / DESCRIPTIONS} describes {sorted(gone)[0]}, which is not there: remove the entry")
    comparisons = tuple(comparison_of(path, files.get(path.stem, {})) for path in paths)
    return Results(comparisons, described.get("about", {}))


def comparison_of(path: Path, described: Mapping[str, Any]) -> Comparison:
    """One file with its entry of machines.toml, which may be empty. Raises ResultsError, OSError."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        engines, works = result["engines"], result["works"]
        usable = OURS in engines and isinstance(result["model"], str) and isinstance(works, dict)
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} is no comparison ({error!r}): measure it again or remove it") from error
    if not usable:
        raise ResultsError(f"{path} has no engine {OURS!r}: measure it again or remove it")
    try:
        measured_at = _time(described.get("measured_at", result.get("measured_at")))
        code_at = described.get("code_at", result.get("code_at"))
        return Comparison(
            file=path.stem,
            machine=Machine(described.get("machine") or result["machine"]["name"], int(result["threads"])),
            measured_at=measured_at,
            code_at=measured_at if code_at is None else _time(code_at),
            result=result,
            only=_names(described["only"]) if "only" in described else None,
            note=str(described.get("note", "")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(
            f"{path} does not say on which machine and when it was measured ({error!r}): measure it again, or add an "
            f"entry with machine and measured_at to {path.parent / DESCRIPTIONS}"
        ) from error


def _descriptions(path: Path) -> Mapping[str, Any]:
    """The TOML, or nothing where there is none."""
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ResultsError(f"{path} is no TOML: {error}") from error


def _time(value: object) -> datetime:
    """A TOML time or the text of one, in UTC."""
    if isinstance(value, datetime):
        return in_minutes(value.isoformat())
    if isinstance(value, str):
        return in_minutes(value)
    raise ValueError(f"{value!r} is no time")


def _names(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(f"{value!r} is no list")
    return tuple(value)


def day(at: datetime) -> str:
    """A date as tables show it: 2026-11-26."""
    return at.astimezone(UTC).date().isoformat()
