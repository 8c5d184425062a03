"""The terminal chat against a `/v1` on a real socket."""

import builtins
import os
import pty
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from app.client.account import ChatError
from app.client.reader import PlainReader, TerminalReader
from app.client.screen import PlainScreen
from app.client.terminal import TerminalChat
from tests.app.client.conftest import TypeIn, plain_chat
from tests.fake_v1 import FakeV1, running


@pytest.fixture
def fake() -> Iterator[FakeV1]:
    with running(FakeV1()) as fake:
        yield fake


def test_streams_the_answer_and_keeps_the_history(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in("first", "", "second", "exit")
    plain_chat(fake.url, system="Be brief.", temperature=0.5).run()
    assert capsys.readouterr().out.count("Hello from the fake.\n") == 2
    assert fake.asked[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "Hello from the fake."},
        {"role": "user", "content": "second"},
    ]
    assert fake.asked[1]["temperature"] == 0.5
    assert "max_tokens" not in fake.asked[1]


@pytest.mark.parametrize("leave", ["exit", "QUIT", EOFError])
def test_leaves(fake: FakeV1, type_in: TypeIn, leave: str | type[BaseException]) -> None:
    type_in(KeyboardInterrupt, leave)  # Ctrl-C at the prompt only drops the line
    plain_chat(fake.url + "/v1/").run()
    assert fake.asked == []


def test_ctrl_d_after_an_answer_is_not_lost(fake: FakeV1, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed before the line editor is there, which a terminal in its usual mode would take for the end of a line."""
    terminal, inside = pty.openpty()
    found = []

    class Reader(TerminalReader):
        def message(self, begun: str = "") -> str:
            if not fake.asked:
                return "first"
            os.write(terminal, b"\x04")
            found.append(os.read(inside, 1))
            raise EOFError

    try:
        with open(inside, encoding="utf-8", closefd=False) as keyboard:
            monkeypatch.setattr(sys, "stdin", keyboard)
            screen = PlainScreen(sys.stdout, sys.stdout)
            TerminalChat(fake.url, screen=screen, reader=Reader(lambda _: ())).run()
    finally:
        os.close(inside)
        os.close(terminal)
    assert found == [b"\x04"]


def test_ctrl_c_stops_the_answer_and_not_the_chat(monkeypatch: pytest.MonkeyPatch, type_in: TypeIn) -> None:
    with running(FakeV1(words=[f"{i} " for i in range(1000)], pause_s=0.01)) as fake:
        printed: list[str] = []

        def interrupt_at_third(text: str = "", **_: object) -> None:
            printed.append(text)
            if text == "3 ":
                fake.words = ["done"]
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(builtins, "print", interrupt_at_third)
        type_in("count", "go on", "quit")
        plain_chat(fake.url).run()
        deadline = time.monotonic() + 60
        while fake.cut_off == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert fake.cut_off == 1
    assert "done" in printed
    assert fake.asked[1]["messages"][1] == {"role": "assistant", "content": "0 1 2 3"}


def test_an_error_is_shown_and_the_question_taken_back(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.error = (429, "All places are taken.")
    type_in("hello", lambda: setattr(fake, "error", None), "again", "exit")
    plain_chat(fake.url).run()
    assert "All places are taken." in capsys.readouterr().out
    assert fake.asked[1]["messages"] == [{"role": "user", "content": "again"}]


def test_an_answer_is_no_command_to_the_terminal(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.words = ["one\n\ttwo ", "\x1b]0;title\x07", "\x9b31m", " Größe 🎉"]
    type_in("hello", "exit")
    plain_chat(fake.url).run()
    printed = capsys.readouterr().out
    assert "one\n\ttwo \ufffd]0;title\ufffd\ufffd31m Größe 🎉" in printed
    assert "\x1b]" not in printed


def test_an_unknown_model_is_named(fake: FakeV1) -> None:
    with pytest.raises(ChatError, match="does not serve gpt-9, only fake-model"):
        plain_chat(fake.url, model="gpt-9").run()


def test_no_service_at_the_address() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # not listening: connections are refused
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ChatError, match=f"no answer from {url}"):
            plain_chat(url).run()


def test_a_service_that_comes_later(
    type_in: TypeIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a person looks on, the chat begins all the same, and the question is not lost."""
    monkeypatch.setattr("app.client.wordings._TIMED_S", 1e9)  # no speed, however slow the machine is
    with socket.socket() as listener, ExitStack() as up:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        fake = FakeV1()

        def come() -> None:
            listener.close()
            up.enter_context(running(fake, port=port))

        type_in("hello", come, "/retry", "exit")
        screen = PlainScreen(sys.stdout, sys.stdout, is_terminal=True)
        TerminalChat(f"http://127.0.0.1:{port}", screen=screen, reader=PlainReader()).run()
    printed = capsys.readouterr().out.splitlines()
    gone = f"no answer from {fake.url}: is the service running? (`redoubt serve`)"
    assert printed[:3] == [
        f"{gone} A question that gets no answer is kept: /retry asks it again.",
        gone,
        "/retry asks again.",
    ]
    assert printed[3].startswith("fake-model at ")
    assert printed[4:] == ["Hello from the fake.", "5 tokens, 1.3k of 8k context, 1.1k remembered"]
    assert [one["content"] for one in fake.asked[0]["messages"]] == ["hello"]


def test_a_failure_says_what_to_do(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    fake.error = (503, "No worker is up.")
    type_in("hello", "exit")
    screen = PlainScreen(sys.stdout, sys.stdout, is_terminal=True)
    TerminalChat(fake.url, screen=screen, reader=PlainReader()).run()
    said = f"{fake.url} says: No worker is up. (request req_1) /retry asks again."
    assert capsys.readouterr().out.splitlines()[1:] == [said]


def test_a_url_that_is_not_an_address() -> None:
    with pytest.raises(ChatError, match="localhost:8000"):
        plain_chat("localhost:8000")


def test_a_model_without_a_chat_template_is_not_chosen() -> None:
    with (
        running(FakeV1(capabilities=("completions",))) as fake,
        pytest.raises(ChatError, match="fake-model has no chat template, so it can't chat"),
    ):
        plain_chat(fake.url).run()
