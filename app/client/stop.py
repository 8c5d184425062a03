"""Makes waiting for items interruptible by Ctrl-C."""

import signal
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def stoppable(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items.

    Ctrl-C raises KeyboardInterrupt only while waiting for the next one, never while one is processed.
    """
    is_waiting = has_come = False

    def come(*_: object) -> None:
        nonlocal has_come
        if is_waiting:
            raise KeyboardInterrupt
        has_come = True

    before = signal.signal(signal.SIGINT, come)
    try:
        while True:
            if has_come:
                raise KeyboardInterrupt
            is_waiting = True
            try:
                item = next(items, _END)
            finally:
                is_waiting = False
            if item is _END:
                return
            yield item  # type: ignore[misc]
    finally:
        signal.signal(signal.SIGINT, before)
