"""Shows a chat's notices and answers, on a terminal or as plain text. Knows no service.

Text of a model or another client can never send commands to the terminal.
"""

import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from rich.cells import cell_len

from app.client.live_area import LiveArea
from app.client.markdown import GrowingMarkdown, Line

_DIM, _PLAIN = "\033[2m", "\033[0m"
_DRAW_AGAIN_S = 0.04
_REST = 10
"""Pause after a drawing, as a multiple of its time: the model may need this machine's cores."""
_SHOWN_THOUGHT_LINES = 6


class AnswerView(Protocol):
    def add(self, text: str) -> None:
        """Shows a further piece of the answer."""
        ...

    def add_thought(self, text: str) -> None:
        """Shows a further piece of the thought before it."""
        ...

    def close(self) -> None:
        """Ends the answer, complete or not."""
        ...


class Screen(Protocol):
    is_terminal: bool
    """Whether a person looks at it, for whom numbers and hints are useful."""

    def say(self, line: str) -> None:
        """Shows a notice of the chat's own."""
        ...

    def answer(self, before: str = "") -> AnswerView:
        """Begins an answer, which continues `before`, if that is not empty."""
        ...


def screen_of(out: TextIO, err: TextIO, environ: Mapping[str, str]) -> Screen:
    """Makes a Markdown screen on a capable terminal, else plain text, with notices on `err` if the output is a pipe."""
    if not out.isatty():
        return PlainScreen(out, err)
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return PlainScreen(out, out, is_terminal=True)
    return TerminalScreen(out, environ)


class PlainScreen:
    """Shows the plain answers, without thoughts."""

    def __init__(self, out: TextIO, notices: TextIO, *, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal
        self._out = out
        self._notices = notices

    def say(self, line: str) -> None:
        print(harmless(line), file=self._notices, flush=True)

    def answer(self, before: str = "") -> AnswerView:
        return _PlainView(self._out)


class _PlainView:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._has_text = False

    def add(self, text: str) -> None:
        self._has_text = self._has_text or bool(text)
        print(harmless(text), end="", file=self._out, flush=True)

    def add_thought(self, text: str) -> None:
        """Does nothing: only answers are shown."""

    def close(self) -> None:
        if self._has_text:
            print(file=self._out, flush=True)


class TerminalScreen:
    """Markdown, drawn while it grows."""

    is_terminal = True

    def __init__(self, out: TextIO, environ: Mapping[str, str]) -> None:
        self._out = out
        self._environ = environ

    def say(self, line: str) -> None:
        print(f"{_DIM}{harmless(line)}{_PLAIN}", file=self._out, flush=True)

    def answer(self, before: str = "") -> AnswerView:
        return _LiveView(LiveArea(self._out, self._size, self._environ), before, self._size)

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            return shutil.get_terminal_size()
        return size if size.columns and size.lines else os.terminal_size((80, 24))


class _LiveView:
    """An answer in progress; its thought is folded to a line when it is over."""

    def __init__(self, area: LiveArea, before: str, size: Callable[[], os.terminal_size]) -> None:
        self._area = area
        self._size = size
        self._columns = size().columns
        self._markdown = GrowingMarkdown()
        self._text = harmless(before)
        self._taken = 0
        """Characters of the text that were passed to Markdown."""
        self._thought = ""
        self._has_answer = self._is_folded = False
        self._begun_s = time.monotonic()
        self._draw_from_s = 0.0
        if before:
            self._taken = len(self._text)
            self._markdown.take(self._text, self._columns)  # it is on the screen already, except for the open block
        self._area.update([], [_dim("…")])

    def add(self, text: str) -> None:
        self._has_answer = self._has_answer or bool(text)
        self._text += harmless(text)
        self._draw_soon()

    def add_thought(self, text: str) -> None:
        self._thought += harmless(text)
        self._draw_soon()

    def close(self) -> None:
        self._draw(is_over=True)

    def _draw_soon(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._draw_from_s:
            self._draw(is_over=False)
            took_s = time.monotonic() - now_s
            self._draw_from_s = now_s + max(_DRAW_AGAIN_S, _REST * took_s)

    def _draw(self, *, is_over: bool) -> None:
        self._columns = self._size().columns
        done: list[Line] = []
        if self._thought and not self._is_folded:
            if not self._has_answer and not is_over:
                self._area.update(done, self._thinking(self._thought))
                return
            done += self._folded()
        new, self._taken = self._text[self._taken :], len(self._text)
        stays, may_change = self._markdown.take(new, self._columns, is_over=is_over)
        done += stays
        self._area.update(done, [] if is_over else may_change or [_dim("…")])

    def _folded(self) -> list[Line]:
        """Folds the thought's lines; an answer that it continues stays above."""
        above: list[Line] = []
        if self._taken:
            above, _ = self._markdown.take("", self._columns, is_over=True)
            self._markdown = GrowingMarkdown()
        self._is_folded = True
        return [*above, _dim(f"Thought for {time.monotonic() - self._begun_s:.0f} s"), Line("", 0)]

    def _thinking(self, text: str) -> list[Line]:
        width = self._columns - 2
        lines = [line[at : at + width] for line in text.splitlines() for at in range(0, max(len(line), 1), width)]
        shown = [_dim(f"  {line}") for line in lines[-_SHOWN_THOUGHT_LINES:]]
        return [_dim(f"Thinking for {time.monotonic() - self._begun_s:.0f} s"), *shown]


def harmless(text: str) -> str:
    """Removes characters that would be commands to the terminal: a model or another client may have written them."""
    return "".join(character if character in "\n\t" or not _is_control(character) else "\ufffd" for character in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def _dim(text: str) -> Line:
    return Line(f"{_DIM}{text}{_PLAIN}", cell_len(text))


def own_screen() -> Screen:
    return screen_of(sys.stdout, sys.stderr, os.environ)
