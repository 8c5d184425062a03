"""The module `os` for the files of saved pages, one of whose calls fails, falls short, or is the process' last."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EROFS
from functools import partial
from typing import Any
from unittest.mock import patch


class KilledError(BaseException):
    """The process ends here: nothing behind it cleans up, as no `except OSError` sees it."""


class FailingOs:
    """The module `os`, one of whose functions fails from its `nth` call on, `times` times.

    creating: only calls of `open` that make a file count.
    """

    def __init__(
        self, function: str, failure: Callable[..., Any], *, nth: int = 0, times: int = 1, creating: bool = False
    ) -> None:
        self.calls = self.failed = 0
        self._function, self._failure, self._nth, self._times = function, failure, nth, times
        self._creating = creating

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return partial(self._call, real) if name == self._function else real

    def _call(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._creating and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        number, self.calls = self.calls, self.calls + 1
        if self._nth <= number < self._nth + self._times:
            self.failed += 1
            return self._failure(real, *args, **kwargs)
        return real(*args, **kwargs)

    @contextmanager
    def installed(self) -> Iterator["FailingOs"]:
        with patch("app.memory.disk.os", self), patch("app.memory.folder.os", self):
            yield self


def fails(code: int) -> Callable[..., Any]:
    def failure(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return failure


def ends_early(real: Callable[..., Any], *args: Any) -> int:
    return 0


def gives_less(real: Callable[..., int], opened: int, rooms: list[memoryview], offset: int) -> int:
    return real(opened, [rooms[0][: max(1, len(rooms[0]) // 2)]], offset)


def takes_less(real: Callable[..., int], opened: int, data: memoryview) -> int:
    return real(opened, data[: max(1, len(data) // 2)])


def refuses_to_write(real: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        raise OSError(EROFS, os.strerror(EROFS))
    return real(path, flags, *args, **kwargs)


def dies(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise KilledError


def dies_half_way(real: Callable[..., int], opened: int, data: memoryview) -> int:
    real(opened, data[: len(data) // 2])
    raise KilledError


def dies_after(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    real(*args, **kwargs)
    raise KilledError
