"""The chat on a terminal: what is typed and pasted, and what stands in the scrollback."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.client.on_terminal import Terminal, chat_on_terminal
from tests.fake_v1 import FakeV1, running

NUMBERS = range(1, 26)
LONG = "".join(
    [
        "# Fifty lines 漢字 🎉\n\n",
        *(f"{number}. item **number {number}** of a long list\n" for number in NUMBERS),
        "\n```python\n",
        *(f"line_{number} = {number}  # of code\n" for number in NUMBERS),
        "```\n\n| a | b |\n|---|---|\n",
        *(f"| cell {number} | {number * 1000} |\n" for number in NUMBERS),
        "\nA paragraph that is wider than the screen and so is broken into several lines,",
        " a second one and a third one, the last of which ends here.\n",
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terminal")


@pytest.fixture(scope="module")
def chat(folder: Path) -> Iterator[tuple[FakeV1, Terminal]]:
    """One chat for several tests, each of which leaves it at the prompt."""
    with running(FakeV1()) as fake, chat_on_terminal(fake.url, folder) as on:
        yield fake, on


def in_pieces(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


def check_once_each(lines: list[str], *wanted: str) -> None:
    shown = "\n".join(lines)
    assert [one for one in wanted if shown.count(one) != 1] == [], shown


def check_long(lines: list[str]) -> None:
    check_once_each(lines, *(f"item number {number} of" for number in NUMBERS))
    check_once_each(lines, *(f"line_{number} = {number}  # of code" for number in NUMBERS))
    check_once_each(lines, *(f"cell {number} " for number in NUMBERS))
    check_once_each(lines, "Fifty lines", "🎉", "A paragraph that", "ends here.", " of 8k context, 1.1k remembered")


def test_a_long_answer_stands_in_the_scrollback_once(chat: tuple[FakeV1, Terminal]) -> None:
    fake, on = chat
    fake.words = in_pieces(LONG)
    check_long(on.ask("write"))


def test_what_is_pasted_is_one_message(chat: tuple[FakeV1, Terminal]) -> None:
    fake, on = chat
    fake.words = ["Hello."]
    on.ask("\x1b[200~def f():\n    return 1\n\x1b[201~what is it?")
    assert fake.asked[-1]["messages"][-1]["content"] == "def f():\n    return 1\nwhat is it?"


def test_lines_are_broken_and_come_back(chat: tuple[FakeV1, Terminal]) -> None:
    fake, on = chat
    fake.words = ["Hello."]
    on.ask("first\\\rsecond\x1b\rthird")
    assert fake.asked[-1]["messages"][-1]["content"] == "first\nsecond\nthird"
    on.ask("another")
    on.ask("\x1b[A\x1b[A")
    assert fake.asked[-1]["messages"][-1]["content"] == "first\nsecond\nthird"
    on.type("/he\t")
    on.wait_for("> /help")
    on.type("\r")
    on.wait_for("goes on with an answer that was stopped or cut")


def test_ctrl_c_stops_and_the_chat_goes_on(chat: tuple[FakeV1, Terminal]) -> None:
    fake, on = chat
    fake.words, fake.pause_s = [f"word{number} " for number in range(3000)], 0.05
    on.type("count\r")
    on.wait_for("word5 ")
    on.type("typed ahead")  # is not shown in the midst of the answer
    on.type("\x03")
    on.wait_for("Stopped. /continue goes on.")
    on.wait_for("\n> typed ahead")
    assert on.text().count("typed ahead") == 1
    fake.words, fake.pause_s = ["done", "."], 0
    assert "done." in "\n".join(on.ask("\x15/continue"))
    question, answer, go_on = fake.asked[-1]["messages"][-3:]
    assert question["content"] == "count"
    assert answer["content"].startswith("word0 word1 word2 word3 word4 word5")
    assert go_on["content"].startswith("Go on exactly")
    assert fake.cut_off == 1


def test_a_thought_is_folded(chat: tuple[FakeV1, Terminal]) -> None:
    fake, on = chat
    fake.thoughts, fake.words = ["Let me", " see.\n", "\x1b]0;title\x07", "Yes."], ["It is ", "**so**."]
    fake.thinks_until = threading.Event()
    answers = on.text().count(" remembered")
    on.type("is it?\r")
    on.wait_for("Let me see.")
    time.sleep(1.1)
    fake.thinks_until.set()
    on.wait_for("It is so.")
    on.wait_for(" remembered", answers + 1)
    assert re.search(r"Thought for [1-9]\d* s", on.text())
    assert "Let me see." not in on.text()
    assert b"\x1b]0;" not in on.written
    fake.thinks_until, fake.thoughts = None, []


def test_ctrl_c_twice_leaves(chat: tuple[FakeV1, Terminal], folder: Path) -> None:
    _, on = chat
    on.type("\x03")
    on.wait_for("Ctrl-C again")
    on.type("\x03")
    assert on.process.wait(120) == 0
    assert not any(path.is_file() for path in folder.rglob("*"))  # what was typed is kept nowhere


def test_the_window_changes_while_an_answer_is_written(tmp_path: Path) -> None:
    fake = FakeV1(words=in_pieces(LONG), pause_s=0.01)
    with running(fake), chat_on_terminal(fake.url, tmp_path) as on:
        on.type("write\r")
        on.wait_for("item number 9 of")
        on.resize(66, 20)
        on.wait_for("line_9 =")
        on.resize(80, 24)
        on.wait_for(" remembered")
        check_long(on.lines())


def test_no_colour_is_plain_text(tmp_path: Path) -> None:
    with running(FakeV1(words=["It is ", "**so**."])) as fake, chat_on_terminal(fake.url, tmp_path, NO_COLOR="1") as on:
        assert "It is **so**." in on.ask("is it?")
        assert b"\x1b[2m" not in on.written


def test_a_pipe_gets_the_answers_and_nothing_else(tmp_path: Path) -> None:
    with running(FakeV1(words=["It is ", "**so**."], thoughts=["hm"])) as fake:
        done = subprocess.run(
            [sys.executable, "-m", "app.cli", "chat", "--url", fake.url],
            input="is it?\nreally?\n",
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm-256color"},
            timeout=240,
            check=True,
        )
    assert done.stdout == "It is **so**.\n" * 2
    assert done.stderr.startswith("fake-model at ")
