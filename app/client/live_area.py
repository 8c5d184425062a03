"""The last lines on a terminal, which are redrawn while they change. Lines above them are never touched.

Knows nothing of what the lines say.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from app.client.markdown import Line

_UP, _ERASE_BELOW = "\033[A", "\033[J"
_NO_WRAP, _WRAP = "\033[?7l", "\033[?7h"
_BEGIN_FRAME, _END_FRAME = "\033[?2026h", "\033[?2026l"
"""Terminals that know these codes show everything between them at once; others ignore them."""
_SHARE = 2 / 3
"""The largest share of the screen's rows; rows above would be out of reach if the window became much smaller."""


class LiveArea:
    """Shows only the last rows of a long area until they are final: rows that have left the screen can't be redrawn."""

    def __init__(self, out: TextIO, size: Callable[[], os.terminal_size], environ: Mapping[str, str]) -> None:
        self._out = out
        self._size = size
        self._shown: list[Line] = []
        self._columns = 0
        self._reflows = _reflows(environ)

    def update(self, done: Sequence[Line], live: Sequence[Line]) -> None:
        """Replaces the area by `done`, which is final, and `live` below it, which is the new area."""
        size = self._size()
        live = live[-max(1, int(size.lines * _SHARE)) :]
        if not done and self._shown == list(live) and size.columns == self._columns:
            return
        same = 0
        if size.columns == self._columns:  # else it may all have moved
            same = min(self._unchanged(done, live), max(len(self._shown) - 1, 0))
        frame = [_BEGIN_FRAME, self._back_to(same, size)]
        frame += [f"{line.text}\r\n" for line in done[same:]]
        shown = "\r\n".join(line.text for line in live[max(0, same - len(done)) :])
        frame += [_NO_WRAP, shown, _WRAP, _END_FRAME]
        self._out.write("".join(frame))
        self._out.flush()
        self._shown, self._columns = list(live), size.columns

    def _unchanged(self, done: Sequence[Line], live: Sequence[Line]) -> int:
        """How many of the area's first lines can stay as they are drawn. A truncated line can't once it is final."""
        for place, (old, new) in enumerate(zip(self._shown, [*done, *live], strict=False)):
            if old != new or (place < len(done) and new.cells > self._columns):
                return place
        return min(len(self._shown), len(done) + len(live))

    def _back_to(self, first: int, size: os.terminal_size) -> str:
        """Erases the area from line `first` on."""
        if not self._shown:
            return "\r" + _ERASE_BELOW
        rows = [self._rows(line, size.columns) for line in self._shown[first:]]
        up = min(sum(rows) - 1, size.lines - 1)
        return "\r" + _UP * up + _ERASE_BELOW

    def _rows(self, line: Line, columns: int) -> int:
        return max(1, math.ceil(min(line.cells, self._columns) / columns)) if self._reflows else 1


def _reflows(environ: Mapping[str, str]) -> bool:
    """Whether the terminal reflows lines when its window becomes narrower; most do."""
    term = environ.get("TERM", "")
    is_screen = term.startswith("screen") and "TMUX" not in environ
    return not (is_screen or term == "linux" or "XTERM_VERSION" in environ)
