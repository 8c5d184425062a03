"""File operations relative to an opened folder, which follow no link and read or write completely.

Knows nothing of pages.
"""

import os
from contextlib import suppress
from typing import Final

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""For a file that may turn out to be something else: opening a pipe must not wait for its writer."""
CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def enter(folder: int, part: str, *, create: bool) -> int | None:
    """Opens a folder inside an opened one; None if it is missing. Raises OSError.

    create: makes a missing one, with mode 0700.
    """
    try:
        return os.open(part, FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            return None
    with suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=folder)
    return os.open(part, FOLDER_FLAGS, dir_fd=folder)


def exists(folder: int, name: str) -> bool:
    """Whether the folder has an entry of that name. Raises OSError."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_into(opened: int, room: memoryview) -> int:
    """Fills `room` from the file's beginning as far as the file goes; returns the number of bytes. Raises OSError."""
    done = 0
    while done < len(room) and (count := os.preadv(opened, [room[done:]], done)):
        done += count
    return done


def write_all(opened: int, data: memoryview) -> None:
    """Writes all of `data`. Raises OSError."""
    done = 0
    while done < len(data):
        done += os.write(opened, data[done:])
