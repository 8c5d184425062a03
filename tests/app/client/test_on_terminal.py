"""The chat on a terminal: what is typed and pasted, and what stands in the scrollback."""

import os
import subprocess
import sys
from pathlib import Path

from tests.app.client.on_terminal import chat_on_terminal
from tests.fake_v1 import FakeV1, running

LONG = [
    "# Fifty lines\n\n",
    *(f"{number}. item **number {number}** of a long list\n" for number in range(1, 26)),
    "\n```python\n",
    *(f"line_{number} = {number}  # of code\n" for number in range(1, 26)),
    "```\n\n| a | b |\n|---|---|\n",
    *(f"| cell {number} | {number * 1000} |\n" for number in range(1, 26)),
    "\nA paragraph that is wider than the screen and so is broken into several lines, the last of which ends here.\n",
]


def pieces(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


def once_each(lines: list[str], wanted: list[str]) -> None:
    found = [line for line in lines for one in wanted if one in line]
    assert [sum(one in line for line in lines) for one in wanted] == [1] * len(wanted), "\n".join(found)


def test_a_long_answer_stands_in_the_scrollback_once(tmp_path: Path) -> None:
    with (
        running(FakeV1(words=pieces("".join(LONG)), pause_s=0.001)) as fake,
        chat_on_terminal(fake.url, tmp_path) as on,
    ):
        on.type("write\r")
        on.wait_for("remembered")
        lines = on.lines()
        once_each(lines, [f"item number {number} of" for number in range(1, 26)])
        once_each(lines, [f"line_{number} = {number}  # of code" for number in range(1, 26)])
        once_each(lines, [f"cell {number} " for number in range(1, 26)])
        once_each(lines, ["Fifty lines", "A paragraph that", "ends here.", " of 8k context, 1.1k remembered"])
        assert on.leave() == 0


def test_the_window_changes_while_an_answer_is_written(tmp_path: Path) -> None:
    words = pieces("".join(LONG))
    with running(FakeV1(words=words, pause_s=0.01)) as fake, chat_on_terminal(fake.url, tmp_path) as on:
        on.type("write\r")
        on.wait_for("item number 9 of")
        on.resize(50, 20)
        on.wait_for("line_9 =")
        on.resize(80, 24)
        on.wait_for("remembered")
        once_each(on.lines(), [f"item number {number} of" for number in range(1, 26)])
        once_each(on.lines(), [f"line_{number} = {number}  # of code" for number in range(1, 26)])
        once_each(on.lines(), [f"cell {number} " for number in range(1, 26)])


def test_typing(tmp_path: Path) -> None:
    """A paste and a line break are one message; Tab completes; a line of the history comes back."""
    with running(FakeV1()) as fake, chat_on_terminal(fake.url, tmp_path) as on:
        on.type("\x1b[200~def f():\n    return 1\n\x1b[201~what is it?\r")
        on.wait_for("remembered", 1)
        on.type("first\\\rsecond\x1b\rthird\r")
        on.wait_for("remembered", 2)
        on.type("\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\r")
        on.wait_for("remembered", 3)
        on.type("/he\t")
        on.wait_for("> /help")
        on.type("\r")
        on.wait_for("goes on with an answer that was stopped or cut")
        asked = [body["messages"][-1]["content"] for body in fake.asked]
        assert asked[:2] == ["def f():\n    return 1\nwhat is it?", "first\nsecond\nthird"]
        assert asked[2] in asked[:2]
        on.type("\x03")
        on.wait_for("Ctrl-C again")
        on.type("\x03")
        assert on.process.wait(20) == 0
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_ctrl_c_stops_and_the_chat_goes_on(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(300)]
    with running(FakeV1(words=words, pause_s=0.05)) as fake, chat_on_terminal(fake.url, tmp_path) as on:
        on.type("count\r")
        on.wait_for("word5 ")
        on.type("typed ahead")  # is not shown in the midst of the answer
        on.type("\x03")
        on.wait_for("Stopped. /continue goes on.")
        on.wait_for("\n> typed ahead")
        assert on.text().count("typed ahead") == 1
        fake.words = ["done", "."]
        on.type("\x15/continue\r")
        on.wait_for("done.")
        on.wait_for("remembered")
        question, answer, go_on = fake.asked[1]["messages"]
        assert question["content"] == "count"
        assert answer["content"].startswith("word0 word1 word2 word3 word4 word5")
        assert go_on["content"].startswith("Go on exactly")
        assert fake.cut_off == 1


def test_a_thought_is_folded(tmp_path: Path) -> None:
    words = ["<think>", "Let me", " see.\n", "\x1b]0;title\x07", "Yes.", "</think>", "\n\nIt is **so**."]
    with running(FakeV1(words=words, pause_s=0.2)) as fake, chat_on_terminal(fake.url, tmp_path) as on:
        on.type("is it?\r")
        on.wait_for("Let me see.")
        on.wait_for("It is so.")
        on.wait_for("remembered")
        assert "Thought for 1 s" in on.text()
        assert "Let me see." not in on.text()
        assert b"\x1b]0;" not in on.written


def test_no_colour_is_plain_text(tmp_path: Path) -> None:
    with running(FakeV1(words=["It is ", "**so**."])) as fake, chat_on_terminal(fake.url, tmp_path, NO_COLOR="1") as on:
        on.type("is it?\r")
        on.wait_for("It is **so**.")
        on.wait_for("remembered")
        assert b"\x1b[2m" not in on.written


def test_a_pipe_gets_the_answers_and_nothing_else(tmp_path: Path) -> None:
    with running(FakeV1(words=["<think>hm</think>", "It is ", "**so**."])) as fake:
        done = subprocess.run(
            [sys.executable, "-m", "app.cli", "chat", "--url", fake.url],
            input="is it?\nreally?\n",
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm-256color"},
            timeout=60,
            check=True,
        )
    assert done.stdout == "It is **so**.\n" * 2
    assert done.stderr.startswith("fake-model at ")
