"""The lines that are drawn anew: which escape codes move to them."""

import io
import os

import pytest

from app.client.live_area import LiveArea
from app.client.markdown import Line

WIDE = Line("x" * 80, 80)


class Window:
    columns, rows = 100, 30

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, self.rows))


def line(text: str) -> Line:
    return Line(text, len(text))


def drawn(out: io.StringIO) -> str:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    for frame in ("\x1b[?2026h", "\x1b[?2026l", "\x1b[?7l", "\x1b[?7h"):
        text = text.replace(frame, "")
    return text


def test_only_what_has_changed_is_drawn() -> None:
    out, window = io.StringIO(), Window()
    area = LiveArea(out, window.size, {})
    area.update([], [line("a"), line("b")])
    assert drawn(out) == "\r\x1b[Ja\r\nb"
    area.update([], [line("a"), line("bc")])
    assert drawn(out) == "\r\x1b[Jbc"
    area.update([], [line("a"), line("bc")])
    assert drawn(out) == ""
    area.update([line("a")], [line("bc"), line("d")])
    assert drawn(out) == "\r\x1b[Jbc\r\nd"
    area.update([line("B")], [])
    assert drawn(out) == "\r\x1b[A\x1b[JB\r\n"


def test_of_a_long_area_the_end_is_shown_until_it_stays() -> None:
    out, window = io.StringIO(), Window()
    window.rows = 6
    area = LiveArea(out, window.size, {})
    lines = [line(str(number)) for number in range(10)]
    area.update([], lines)
    assert drawn(out) == "\r\x1b[J6\r\n7\r\n8\r\n9"
    area.update(lines, [])
    assert drawn(out) == "\r\x1b[A\x1b[A\x1b[A\x1b[J" + "".join(f"{number}\r\n" for number in range(10))


@pytest.mark.parametrize(
    ("environ", "rows"), [({"TERM": "xterm-256color"}, 4), ({"TERM": "linux"}, 2), ({"XTERM_VERSION": "390"}, 2)]
)
def test_a_window_that_became_narrower(environ: dict[str, str], rows: int) -> None:
    out, window = io.StringIO(), Window()
    area = LiveArea(out, window.size, environ)
    area.update([], [WIDE, WIDE])
    drawn(out)
    window.columns = 50
    area.update([], [line("a")])
    assert drawn(out) == "\r" + "\x1b[A" * (rows - 1) + "\x1b[Ja"


def test_a_line_that_was_cut_off_is_drawn_whole_when_it_stays() -> None:
    out, window = io.StringIO(), Window()
    window.columns = 50
    area = LiveArea(out, window.size, {})
    area.update([], [WIDE, line("a")])
    drawn(out)
    area.update([WIDE], [line("a")])
    assert drawn(out) == "\r\x1b[A\x1b[J" + WIDE.text + "\r\na"
