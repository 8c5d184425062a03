"""Writes a page, and kills itself in the step that it is told: FOLDER STEP."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.memory import disk
from tests.app.memory.pages import id_of, open_folder, write


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(function: Callable[..., Any], *, before: bool = False, when: Callable[..., bool] = lambda *_: True) -> Any:
    """The function, killed before or after it has done its work."""

    def call(*args: Any, **kwargs: Any) -> Any:
        fatal = when(*args)
        if fatal and before:
            die()
        result = function(*args, **kwargs)
        if fatal:
            die()
        return result

    return call


def main() -> None:
    """Does not return."""
    root, step = Path(sys.argv[1]), sys.argv[2]
    folder = open_folder(root)

    def half(opened: int, data: memoryview) -> None:
        os.write(opened, data[: len(data) // 2])
        die()

    patches: dict[str, Callable[[], None]] = {
        "after open": lambda: setattr(os, "open", dies(os.open, when=lambda path, *_: str(path).startswith(".tmp-"))),
        "half written": lambda: setattr(disk, "write_all", half),
        "after write": lambda: setattr(disk, "write_all", dies(disk.write_all)),
        "before rename": lambda: setattr(os, "rename", dies(os.rename, before=True)),
        "after rename": lambda: setattr(os, "rename", dies(os.rename)),
        "after utime": lambda: setattr(os, "utime", dies(os.utime)),
    }
    patches[step]()
    write(folder, id_of("ada", "text"))


if __name__ == "__main__":
    main()
