"""Checks that a disk has room for a file before it is written."""

import shutil
from pathlib import Path
from typing import Final

from quant.errors import OutputError

SPARE_BYTES: Final = 64 << 20
"""Reserve beside a model's weights, for the tokenizer and the file system itself."""


def free_bytes(out: Path) -> int:
    """Free bytes on the disk of `out`, which need not exist."""
    place = next(parent for parent in out.absolute().parents if parent.exists())
    return shutil.disk_usage(place).free


def check_free_space(out: Path, needed_bytes: int) -> None:
    """Raises OutputError if the disk of `out` has less than `needed_bytes` and a reserve free."""
    free = free_bytes(out)
    if free < needed_bytes + SPARE_BYTES:
        raise OutputError(f"{out}: needs {needed_bytes / 1e9:.2f} GB of disk, {free / 1e9:.2f} GB are free")
