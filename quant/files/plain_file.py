"""Recognizes unreadable files: pipes, devices and folders, which would block or never end, and Git LFS pointers.

Does not know what should be in a file.
"""

import stat
from pathlib import Path
from typing import Final

from quant.errors import SourceError

MOST_TEXT_BYTES: Final = 1 << 30
"""Size limit of calibration and evaluation texts, which are read whole."""
_LFS_BEGIN: Final = b"version https://git-lfs"


def check_plain_file(path: Path) -> int:
    """Returns the size of a regular file with its own content. Raises SourceError naming it, OSError."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise SourceError(f"{path}: is {kind}, not a file")
    if found.st_size < 1024:
        with path.open("rb") as file:
            if file.read(len(_LFS_BEGIN)) == _LFS_BEGIN:
                raise SourceError(
                    f"{path}: is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder, or download"
                    " the model with `hf download`"
                )
    return found.st_size


def read_plain_text(path: Path, most_bytes: int) -> str:
    """Reads a UTF-8 file of at most `most_bytes`. Raises SourceError naming the file."""
    try:
        if check_plain_file(path) > most_bytes:
            raise SourceError(f"{path}: is larger than {most_bytes} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: can't be read as UTF-8 text (byte {error.start})") from error
