"""Checks a folder of saved pages without any key, and finds what can't be a page.

Reads headers only, follows no link, and changes nothing. Only its user's key can tell whether a page opens.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.memory import disk
from app.memory.folder import OWNER, SUFFIX, TEMPORARY, VERSION
from app.memory.page_file import HEADER_BYTES, PageFileError, Place, header_place

_MODEL: Final = re.compile("[0-9a-f]{16}")
_PART: Final = re.compile("[0-9a-f]{2}")
_NAME: Final = re.compile("[0-9a-f]{64}" + re.escape(SUFFIX))
_WRITTEN: Final = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{32}")


@dataclass(slots=True)
class FolderReport:
    """The result of a check."""

    pages: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of pages by owner and model."""
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    temporary: int = 0
    """Files that are being written, or that a killed worker has left."""
    wrong: list[tuple[Path, str]] = field(default_factory=list)
    """Entries that can't be a page where they lie, with the reason."""


def check_folder(root: Path) -> FolderReport:
    """Checks `<root>/v1`. Raises OSError if that can't be read."""
    report = FolderReport()
    for owner in _folders(root / VERSION, OWNER, report):
        for model in _folders(owner, _MODEL, report):
            sizes: Counter[int] = Counter()
            for part in _folders(model, _PART, report):
                for path, status in _files(part, report):
                    key = owner.name, model.name
                    if (reason := _wrong(path, Place(owner.name, model.name, path.stem), sizes)) is not None:
                        report.wrong.append((path, reason))
                    else:
                        report.pages[key] += 1
                        report.bytes[key] += status.st_size
                        sizes[status.st_size] += 1
    return report


def _folders(top: Path, name: re.Pattern[str], report: FolderReport) -> Iterator[Path]:
    with os.scandir(top) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
            elif not _WRITTEN.fullmatch(entry.name):
                report.wrong.append((Path(entry.path), "nothing of that name belongs here"))


def _files(folder: Path, report: FolderReport) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            status = entry.stat(follow_symlinks=False)
            if _WRITTEN.fullmatch(entry.name):
                report.temporary += 1
            elif not _NAME.fullmatch(entry.name):
                report.wrong.append((Path(entry.path), "nothing of that name belongs here"))
            elif not stat.S_ISREG(status.st_mode):
                report.wrong.append((Path(entry.path), "it is no file"))
            elif entry.name[:2] != folder.name:
                report.wrong.append((Path(entry.path), "it lies in another file's folder"))
            else:
                yield Path(entry.path), status


def _wrong(path: Path, place: Place, sizes: Counter[int]) -> str | None:
    """Why the file can't be a page, or None. sizes: of the pages of the same owner and model so far."""
    opened = os.open(path, disk.READ_FLAGS)
    try:
        size = os.fstat(opened).st_size
        header = os.pread(opened, HEADER_BYTES, 0)
    finally:
        os.close(opened)
    if sizes and size not in sizes:
        return f"it has {size} bytes, others of the model {next(iter(sizes))}"
    try:
        found = header_place(header)
    except PageFileError as error:
        return str(error)
    return None if found == place else "its header is another page's"
