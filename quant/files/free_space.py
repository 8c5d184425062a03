"""Checks that a disk has room for a file before it is written."""

import shutil
from pathlib import Path
from typing import Final

from quant.errors import OutputError

_SPARE_BYTES: Final = 64 << 20  # for the tokenizer and the file system itself


def free_bytes(out: Path) -> int:
    """What the disk of `out` has left, but for a reserve. `out` need not be there."""
    place = next(parent for parent in out.absolute().parents if parent.exists())
    return max(0, shutil.disk_usage(place).free - _SPARE_BYTES)


def check_free_space(out: Path, needed_bytes: int) -> None:
    """Raises OutputError if the disk of `out` has less than `needed_bytes` and a reserve free."""
    free = free_bytes(out)
    if free < needed_bytes:
        raise OutputError(f"{out}: needs {needed_bytes / 1e9:.2f} GB of disk, {free / 1e9:.2f} GB are free")
