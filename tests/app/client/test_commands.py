"""Slash commands, stop and go on, asking again: against a `/v1` on a real socket, and an ingress with accounts."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.client import v1
from app.client.attached import together
from app.client.commands import COMMANDS, completions
from app.client.kept_chat import newest_branch
from app.client.reader import PlainReader
from app.client.screen import PlainScreen
from app.client.terminal import TerminalChat
from app.client.turns import File
from tests.app.client.conftest import MakeSite, TypeIn, plain_chat
from tests.app.documents.files import FOLDER
from tests.app.fake_worker import deltas
from tests.app.interface.thinking.families import thinking_model
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.tiny_model import reference_tokenizer
from tests.fake_v1 import FakeV1, running

LOGIN = ("login", "ann", PASSWORD)


@pytest.fixture
def fake() -> Iterator[FakeV1]:
    with running(FakeV1()) as fake:
        yield fake


def chat(url: str, capsys: pytest.CaptureFixture[str], **options: Any) -> list[str]:
    """A whole chat; the lines that it prints after its greeting."""
    plain_chat(url, **options).run()
    return capsys.readouterr().out.splitlines()[1:]


def said(site: Site, url: str, number: int = 0) -> list[str]:
    """The newest branch of what is stored of the conversation that changed last, or of one before it."""
    client = v1.connect(url, json.loads(session_file().read_text())[url]["token"])
    found: Any = client.get("/conversations", cast_to=object)
    path = f"/conversations/{found['data'][number]['id']}/items?order=asc"
    items: Any = client.get(path, cast_to=object)
    return [item["content"][0]["text"] for item in newest_branch(items["data"])]


def session_file() -> Path:
    return Path(os.environ["XDG_CONFIG_HOME"]) / "redoubt" / "sessions.json"


def test_the_help_has_every_command(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    type_in("/help", "/quit")
    printed = chat(fake.url, capsys)
    assert [line.split()[0] for line in printed[: len(COMMANDS)]] == [f"/{command.name}" for command in COMMANDS]


def test_what_is_no_command(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    type_in("/usr/bin is what?", "//usr/bin is what?", "/retry now", "what is /help?", "exit")
    printed = chat(fake.url, capsys)
    assert printed[0].startswith("There is no command /usr/bin. /help lists them; with // in front")
    assert printed[2].startswith("/retry takes nothing behind it.")
    assert [body["messages"][-1]["content"] for body in fake.asked] == ["/usr/bin is what?", "what is /help?"]


def test_a_file_goes_with_the_next_question(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    site, url = make_site(guests=True)
    long = tmp_path / "long.txt"
    long.write_text("word " * 500)
    pdf = FOLDER / "contract.pdf"
    type_in(
        *(f"/attach {pdf}", f"/attach {long}", "/attach /nowhere.txt", f"/attach {FOLDER / 'locked.pdf'}"),
        *("When?", "/retry", "And?", *LOGIN, "So?", "/retry", "/new", f"/attach {pdf}", "/attach none", "Hm?", "exit"),
    )
    printed = chat(url, capsys)
    assert printed[0].startswith("contract.pdf: 3 pages, ")
    assert printed[0].endswith(" of 512 tokens. Page 2 has no text: pictures of text, such as scans, are not read.")
    assert printed[1] == "With your next question: contract.pdf."
    assert printed[2].startswith("long.txt has ")
    assert printed[2].endswith("and the context of tiny 512: with a question it does not fit. Attach a part of it.")
    assert printed[3] == "/nowhere.txt: there is no such file."
    assert printed[4].endswith('"locked.pdf" is protected by a password: save it without one.')
    prompts = [
        reference_tokenizer().decode(list(one.prompt_token_ids), skip_special_tokens=False)
        for one in site.worker.requests
    ]
    assert [prompt.count('<document name="contract.pdf">\n[page 1]') for prompt in prompts] == [1, 1, 1, 1, 1, 0]
    assert prompts[0] == prompts[1]
    assert prompts[4].count("When?") == prompts[4].count("So?") == 1


def test_several_files_are_expected_to_take_longer_than_each_alone() -> None:
    one, other = File("a.pdf", "A", None, 12.3, 2.3), File("b.pdf", "B", None, 4.0, 0.2)
    assert together([]) == "no file"
    assert together([one]) == "a.pdf"
    assert together([one, other]) == "a.pdf, b.pdf, together about 18 s until the first word"
    assert together([one, File("c.pdf", "C")]) == "a.pdf, c.pdf"


def test_tab_completes(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for name in ("notes.md", "other.md", ".hidden"):
        (tmp_path / name).touch()
    start = f"/attach {tmp_path}/"
    assert list(completions(f"{start}no")) == [f"{start}notes/", f"{start}notes.md"]
    assert list(completions(start)) == [f"{start}notes/", f"{start}notes.md", f"{start}other.md"]
    assert list(completions("/attach /nowhere/at/all")) == []

    assert list(completions("/re")) == ["/retry"]
    assert list(completions("/set t")) == ["/set temperature ", "/set top_p "]
    assert list(completions("/think s")) == ["/think short"]
    assert list(completions("re")) == list(completions("/help\n")) == []


def test_retry_takes_the_answers_place_with_another_seed(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in("/retry", "first", "/retry", "/retry", "second", "exit")
    assert chat(fake.url, capsys)[0] == "There is no question yet."
    first, again, once_more, second = fake.asked
    assert first["messages"] == again["messages"] == once_more["messages"]
    assert "seed" not in first
    assert again["seed"] != once_more["seed"]
    assert [one["content"] for one in second["messages"]] == ["first", "Hello from the fake.", "second"]


def test_edit_asks_in_other_words(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    type_in("first", "secnd", "/edit", "second", "exit")
    chat(fake.url, capsys)
    assert [one["content"] for one in fake.asked[2]["messages"]] == ["first", "Hello from the fake.", "second"]


def test_an_answer_that_was_cut_goes_on(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    fake.finish_reason = "length"
    type_in("/set max_tokens 5", "first", "/continue", "second", "exit")
    printed = chat(fake.url, capsys)
    assert printed.count("Cut at 5 tokens: the longest answer. /continue goes on.") == 3
    assert fake.asked[0]["max_tokens"] == 5
    assert fake.asked[1]["messages"][1]["content"] == "Hello from the fake."
    assert [one["content"] for one in fake.asked[2]["messages"]] == [
        "first",
        "Hello from the fake.Hello from the fake.",
        "second",
    ]


def test_a_question_without_an_answer_is_kept(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        fake.error = (503, "No worker is up. Try again later.")

    def come_back() -> None:
        fake.error = None

    type_in("first", fail, "second", "/continue", "/edit", "third", come_back, "/retry", "exit")
    printed = chat(fake.url, capsys)
    assert printed.count(f"{fake.url} says: No worker is up. Try again later.") == 2
    assert "The last question has no answer yet: /retry asks it again." in printed
    assert [one["content"] for one in fake.asked[-1]["messages"]] == ["first", "Hello from the fake.", "third"]


def test_thoughts_are_neither_shown_nor_sent_back(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.thoughts = ["h", "m"]
    type_in("first", "second", "exit")
    assert chat(fake.url, capsys) == ["Hello from the fake."] * 2
    assert fake.asked[1]["messages"][1] == {"role": "assistant", "content": "Hello from the fake."}


def test_an_answer_that_is_cut_while_it_thinks_says_what_to_do(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.thoughts, fake.words, fake.finish_reason, fake.reasoning_cut = ["h", "m"], [], "length", "length"
    type_in("first", "/continue", "exit")
    (said, _) = chat(fake.url, capsys)
    assert said.startswith("Cut at 0 tokens, while the model was still thinking: the longest answer. ")
    assert said.endswith("/think short or /set max_tokens, then /retry.")
    assert len(fake.asked) == 1


def test_a_thought_that_its_budget_has_cut_is_followed_by_its_answer(
    fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.thoughts, fake.reasoning_cut = ["h", "m"], "budget"
    type_in("first", "exit")
    assert chat(fake.url, capsys) == ["Hello from the fake."]


THINKING = {"switch": True, "short_tokens": 1024, "default": "full"}


def test_how_much_it_thinks(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    fake.thinking = THINKING
    asked = ["/think", "one", "/think off", "two", "/think SHORT", "three", "/new", "four", "/think full", "five"]
    type_in(*asked, "/think long", "/think", "exit")
    printed = chat(fake.url, capsys)
    assert [line for line in printed if "hink" in line] == [
        "Thinking: full, the default",
        "Thinking: off",
        "Thinking: short, at most 1,024 tokens",
        "Thinking: full",
        "/think knows off, short, full.",
        "Thinking: full",
    ]
    sent = [{name: body.get(name) for name in ("enable_thinking", "thinking_budget")} for body in fake.asked]
    short = {"enable_thinking": True, "thinking_budget": 1024}
    assert sent == [
        {"enable_thinking": None, "thinking_budget": None},
        {"enable_thinking": False, "thinking_budget": None},
        short,
        short,
        {"enable_thinking": True, "thinking_budget": -1},
    ]


@pytest.mark.parametrize(
    ("thinking", "line", "said"),
    [
        (None, "/think", "fake-model does not think before it answers."),
        (None, "/think off", "fake-model does not think before it answers."),
        (
            {**THINKING, "switch": False},
            "/think off",
            "fake-model always thinks. /think short ends its thoughts after 1,024 tokens.",
        ),
        (
            {**THINKING, "default": "short"},
            "/think",
            "Thinking: short, at most 1,024 tokens, the default",
        ),
    ],
)
def test_what_a_model_can_be_told_of_thinking(
    fake: FakeV1,
    type_in: TypeIn,
    capsys: pytest.CaptureFixture[str],
    thinking: dict[str, Any] | None,
    line: str,
    said: str,
) -> None:
    fake.thinking = thinking
    type_in(line, "hi", "exit")
    assert chat(fake.url, capsys)[0] == said
    assert "enable_thinking" not in fake.asked[0]


def test_a_users_chat_keeps_how_much_it_thinks(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site(model=thinking_model())
    type_in(*LOGIN, "/think off", "one", "/title One", "/new", "/think short", "two", "/think full", "/open 2", "exit")
    chat(url, capsys)
    first, second = site.worker.requests[:2]
    prompts = [thinking_model().tokenizer.text(request.prompt_token_ids) for request in (first, second)]
    assert [prompt.endswith("<think>\n\n</think>\n\n") for prompt in prompts] == [True, False]
    assert (first.thought, second.thought is not None) == (None, True)
    type_in("/think", "/open 2", "/think", "three", "exit")  # in another terminal, the newest is opened
    printed = chat(url, capsys)
    assert [line for line in printed if line.startswith("Thinking")] == ["Thinking: full", "Thinking: off"]
    third = thinking_model().tokenizer.text(site.worker.requests[-1].prompt_token_ids)
    assert "three" in third
    assert third.endswith("<think>\n\n</think>\n\n")


def test_settings(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["/set temperature 3", "/set top_p x", "/set seed 1.5", "/set top_k 1"]
    right = ["/set top_p 0.5", "/set seed -7", "/system Be brief."]
    type_in(*right, "hi", "/system none", "/set seed default", *wrong, "/set", "hi", "exit")
    printed = chat(fake.url, capsys)
    first, second = fake.asked
    assert (first["top_p"], first["seed"], first["messages"][0]["content"]) == (0.5, -7, "Be brief.")
    assert ("seed" in second, second["messages"][0]["role"]) == (False, "user")
    assert "3 is not a number from 0 to 2." in printed
    assert "/set knows temperature, top_p, max_tokens, seed." in printed
    assert printed[-5:-1] == ["temperature: default", "top_p: 0.5", "max_tokens: default", "seed: default"]


def test_models_and_memory(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    type_in("/model", "/model gpt-9", "/model fake-model", "/memory", "hi", "/memory", "exit")
    assert chat(fake.url, capsys) == [
        "* fake-model, 8,192 tokens of context",
        f"{fake.url} does not serve gpt-9, only fake-model",
        "Answers come from fake-model.",
        "Last answer: no answer yet.",
        "Hello from the fake.",
        "Last answer: 5 tokens, 1.3k of 8k context, 1.1k remembered.",
    ]


def test_new_and_export(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [f"/export {tmp_path}/a.md", f"/export {tmp_path}/a.json", f"/export {tmp_path}/a.md", "/export a.txt"]
    type_in("first", "/new", "second", *files, "exit")
    printed = chat(fake.url, capsys)
    assert len(fake.asked[1]["messages"]) == 1
    assert (
        tmp_path / "a.md"
    ).read_text() == "# Conversation\n\n## You\n\nsecond\n\n## Answer\n\nHello from the fake.\n"
    assert json.loads((tmp_path / "a.json").read_text())["messages"][0] == {"role": "user", "content": "second"}
    assert (tmp_path / "a.md").stat().st_mode & 0o777 == 0o600
    assert printed[-2] == f"{tmp_path}/a.md is there already: choose another name."
    assert printed[-1] == "/export FILE: its name ends in .md or .json."


@pytest.mark.parametrize("command", ["list", "open 1", "title x", "delete"])
def test_what_needs_an_account(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str], command: str) -> None:
    type_in(f"/{command}", "exit")
    assert chat(fake.url, capsys)[0].endswith("is for users, whose conversations the service keeps: login comes first.")


def test_a_users_conversations(make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    site, url = make_site()
    first = ["/title too early", "in the first", "/title One", "/new", "in the second", "/list", "/open 2", "and on"]
    type_in(*LOGIN, *first, "/open 9", "/delete", "no", "/delete", "yes", "/list", "exit")
    printed = chat(url, capsys)
    assert "This conversation has not begun yet." in printed
    listed = [re.sub(r"\d\d \w+ \d\d:\d\d", "DAY", line) for line in printed if re.match(r"[ *] +\d ", line)]
    assert listed == ["*  1  DAY  in the second", "   2  DAY  One", "   1  DAY  in the second"]
    assert "/list has no number 9." in printed
    assert printed.count("Nothing is deleted.") == 1
    prompt = reference_tokenizer().decode(site.worker.requests[-1].prompt_token_ids)
    assert "in the first" in prompt
    assert "and on" in prompt
    assert "in the second" not in prompt


def test_a_users_answer_again_in_other_words_and_longer(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stored conversation is what is shown."""
    site, url = make_site()
    type_in(*LOGIN, "first", "second", "/retry", "exit")
    chat(url, capsys)
    first, answer, second, again = said(site, url)
    assert (first, second, again) == ("first", "second", answer)
    type_in("/edit", "2nd", "/continue", "exit")  # of the conversation that another chat has begun
    chat(url, capsys)
    assert said(site, url) == ["first", answer, "2nd", answer + answer]


def test_a_question_of_a_users_that_failed(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site()

    def fail_next() -> None:
        site.accounts.failing.append("begin_turn")

    type_in(*LOGIN, "first", fail_next, "second", "/retry", "exit")
    printed = chat(url, capsys)
    assert f"{url} says: The accounts do not answer. Try again later." in printed
    assert said(site, url)[::2] == ["first", "second"]


def test_an_answer_that_breaks_off_is_kept(fake: FakeV1, type_in: TypeIn, capsys: pytest.CaptureFixture[str]) -> None:
    fake.finish_reason = None
    type_in("first", lambda: setattr(fake, "finish_reason", "stop"), "/continue", "exit")
    assert not plain_chat(fake.url).run()
    printed = capsys.readouterr().out.splitlines()[1:]
    assert printed[:2] == ["Hello from the fake.", "The connection broke off before the answer's end."]
    assert fake.asked[1]["messages"][1]["content"] == "Hello from the fake."


@pytest.mark.parametrize("guests", [False, True])
def test_a_chat_goes_on_past_the_context(
    guests: bool, make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site(guests=guests)
    questions = [f"Question {number} about " + "cats and dogs " * 6 for number in range(12)]
    type_in(*(() if guests else LOGIN), "/context", *questions, "/context", "exit")
    screen = PlainScreen(sys.stdout, sys.stdout, is_terminal=True)
    TerminalChat(url, screen=screen, reader=PlainReader(), is_new=True).run()
    printed = capsys.readouterr().out.splitlines()
    assert "Nothing is known yet: the next answer tells." in printed
    assert not [line for line in printed if "context_length" in line or "/new" in line]
    told = [line for line in printed if line.startswith("── The model no longer sees the first")]
    assert len(told) > 1
    shown = re.search(r"the first (\d+) turns of this chat and sees it from “Question (\d+) about [^”]*…” on", told[-1])
    assert shown is not None
    assert shown[1] == shown[2]
    used, seen = printed[-2:]
    assert re.fullmatch(r"\d+ of 384 tokens are used; (\d+ are left for|the next question leaves) .*\.", used)
    assert seen == told[-1].strip("─ ")
    assert all(request.window is not None for request in site.worker.requests)


@pytest.mark.parametrize("guests", [False, True])
def test_an_answer_says_by_what_it_was_cut(
    guests: bool, make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    site, url = make_site(guests=guests)
    tokens = [5, 400]
    site.worker._script = lambda _: deltas([5] * tokens.pop(0), finish_reason="length")
    type_in(*(() if guests else LOGIN), "/set max_tokens 5", "first", "/set max_tokens 1000", "second", "exit")
    plain_chat(url, is_new=True).run()
    cut = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Cut")]
    assert cut == [
        "Cut at 5 tokens: the longest answer. /continue goes on.",
        "Cut at 400 tokens: the context is full. /continue goes on.",
    ]


def test_answers_are_found_in_a_collection(
    make_site: MakeSite, type_in: TypeIn, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = make_site()
    type_in(*LOGIN, "/collection", "/collection Leases", "/collection none", "/quit")
    printed = chat(url, capsys)
    assert any(line.startswith("There are no collections yet") for line in printed)
    assert any(line.startswith("There is no collection Leases") for line in printed)
