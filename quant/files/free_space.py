"""Whether a disk has room for what is to be written."""

import shutil
from pathlib import Path
from typing import Final

from quant.errors import OutputError

_SPARE_BYTES: Final = 64 << 20  # what the tokenizer and the file system itself may need


def check_free_space(out: Path, needed_bytes: int) -> None:
    """Raises OutputError if the disk of `out` has too little room."""
    place = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed_bytes + _SPARE_BYTES:
        raise OutputError(f"{out}: needs {needed_bytes / 1e9:.2f} GB of disk, {free / 1e9:.2f} GB are free")
