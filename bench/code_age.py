"""When the engine's code last changed, so that a table can say which of its figures are of older code.

Asks git; knows no results. What counts as the engine are the folders that a comparison's speed comes from.
"""

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.common import ROOT

ENGINE_FOLDERS: Final = ("kernels", "app/engine")


@dataclass(frozen=True, slots=True, order=True)
class EngineChange:
    """The last commit that changed the engine."""

    at: datetime
    """When it was committed, in UTC, with whole minutes."""
    commit: str
    """Short hash of that commit."""


def last_engine_change(root: Path = ROOT, revision: str = "HEAD") -> EngineChange | None:
    """The last change up to a revision; None where there is no repository or the revision is not in it.

    Neither is it known in a shallow clone: there the oldest commit that was fetched seems to have changed everything.
    """
    shallow = ["git", "-C", str(root), "rev-parse", "--is-shallow-repository"]
    command = ["git", "-C", str(root), "log", "-1", "--format=%cI %h", "--abbrev=10", revision, "--", *ENGINE_FOLDERS]
    try:
        if subprocess.run(shallow, check=True, capture_output=True, text=True).stdout.strip() != "false":
            return None
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return None
    return EngineChange(in_minutes(printed[0]), printed[1]) if printed else None


def in_minutes(text: str) -> datetime:
    """A time in UTC, without seconds. Raises ValueError for a text that is no time with its offset."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    return found.astimezone(UTC).replace(second=0, microsecond=0)
