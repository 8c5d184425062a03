"""gpt-oss's channels are split correctly wherever the text is cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.interface.thinking.channels import CALL_HEAD, TOKEN_SIGN, ChannelSplitter

AGAIN = "<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
CALLED = f"{CALL_HEAD}add<|message|>"


def split(pieces: list[str], *, marks_are_tokens: bool = False) -> tuple[str, str]:
    splitter = ChannelSplitter(marks_are_tokens=marks_are_tokens)
    fed = [*map(splitter.feed, pieces), splitter.finish()]
    return "".join(one for one, _ in fed), "".join(other for _, other in fed)


CASES = {
    "a thought and an answer": (f"{THOUGHT}hm, 日本\n\nso\n{AGAIN}{FINAL}Yes.<|return|>", "hm, 日本\n\nso", "Yes."),
    "an answer": (f"{FINAL}Yes.", "", "Yes."),
    "two thoughts": (f"{THOUGHT} a {AGAIN}{THOUGHT}b{AGAIN}{FINAL}c<|return|>", "a\n\nb", "c"),
    "a preamble": (
        f"{THOUGHT}hm{AGAIN}<|channel|>commentary<|message|>I will look.{AGAIN}{THOUGHT}so{AGAIN}{FINAL}Yes<|return|>",
        "hm\n\nso",
        "I will look.\n\nYes",
    ),
    "a call": (
        f"{THOUGHT}hm{AGAIN}<|channel|>commentary to=functions.add <|constrain|>json<|message|>{{}}<|call|>",
        "hm",
        f"{CALLED}{{}}<|call|>",
    ),
    "a call, no gap": ("<|channel|>commentary to=functions.add<|constrain|>json<|message|>{}", "", f"{CALLED}{{}}"),
    "a call in the thought's channel": (
        '<|channel|>analysis to=functions.add code<|message|>{"a": 1}<|call|>',
        "",
        f'{CALLED}{{"a": 1}}<|call|>',
    ),
    "the recipient first": (
        f"{THOUGHT}hm{AGAIN} to=functions.add<|channel|>commentary json<|message|>{{}}<|call|>",
        "hm",
        f"{CALLED}{{}}<|call|>",
    ),
    "the recipient at the beginning": (
        " to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
        "",
        f"{CALLED}{{}}<|call|>",
    ),
    "no arguments": (
        f"<|channel|>commentary to=functions.add<|message|><|call|>{FINAL}x",
        "",
        f"{CALLED}{{}}<|call|>x",
    ),
    "a preamble and a call": (
        f"<|channel|>commentary<|message|>Plan:\n1.{AGAIN}{CALLED}{{}}<|call|>",
        "",
        f"Plan:\n1.{CALLED}{{}}<|call|>",
    ),
    "a tool of the model's own": (f"<|channel|>analysis to=python code<|message|>1+1{AGAIN}{FINAL}2", "1+1", "2"),
    "a made-up result": (
        f"{CALLED}{{}}<|call|><|start|>functions.add to=assistant<|channel|>commentary<|message|>3{AGAIN}{FINAL}x",
        "3",
        f"{CALLED}{{}}<|call|>x",
    ),
    "no end marks": (f"{THOUGHT}hm{FINAL}Yes", "hm", "Yes"),
    "no end mark": (f"{THOUGHT}hm<|start|>assistant{FINAL}Yes", "hm", "Yes"),
    "no start": (f"{THOUGHT}hm<|end|>{FINAL}Yes", "hm", "Yes"),
    "a final answer with a type": (f"{THOUGHT}x{AGAIN}<|channel|>final <|constrain|>json<|message|>{{}}", "x", "{}"),
    "no channel": (f"{THOUGHT}hm{AGAIN}<|message|>Yes", "hm", "Yes"),
    "no channels at all": ("Yes, <|end|> and <|channel|> are marks.", "", "Yes, <|end|> and <|channel|> are marks."),
    "marks in an answer": (f"{FINAL}<|end|> ends, <|start|> begins.<|return|>", "", "<|end|> ends, <|start|> begins."),
    "an answer that begins as a recipient": ("to=5 is it", "", "to=5 is it"),
    "nothing": ("", "", ""),
    "white space": ("  ", "", "  "),
    "a cut thought": (f"{THOUGHT}hm \n", "hm", ""),
    "a cut mark": (f"{FINAL}Yes<|en", "", "Yes<|en"),
    "a cut header": (f"{THOUGHT}hm{AGAIN}<|channel|>fin", "hm", ""),
    "an empty thought": (f"{THOUGHT} {AGAIN}{FINAL}Yes", "", "Yes"),
    "a message without a text": (f"<|channel|>analysis<|end|><|start|>assistant{FINAL}Yes", "", "Yes"),
    "a header without an end": ("<|channel|>" + "x" * 600, "", "<|channel|>" + "x" * 600),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_where_it_is_cut_does_not_matter(case: str) -> None:
    text, thought, answer = CASES[case]
    assert split([text]) == (thought, answer)
    assert split(list(text)) == (thought, answer)
    for at in range(len(text)):
        assert split([text[:at], text[at:]]) == (thought, answer), text[:at]


@pytest.mark.parametrize("case", CASES)
def test_marks_that_are_tokens(case: str) -> None:
    text, thought, answer = CASES[case]
    signed = re.sub(r"<\|\w+\|>", lambda mark: TOKEN_SIGN + mark[0], text)
    for pieces in ([signed], list(signed)):
        assert split(pieces, marks_are_tokens=True) == (thought, answer)


def test_text_that_looks_like_marks_that_are_tokens_is_text() -> None:
    spelled = f"{AGAIN}{FINAL}x<|return|>"
    signed = f"{TOKEN_SIGN}<|channel|>final{TOKEN_SIGN}<|message|>{spelled}{TOKEN_SIGN}<|return|>"
    assert split([signed], marks_are_tokens=True) == ("", spelled)
    call = f'{{"text": "{AGAIN}{FINAL}"}}'
    head = f"{TOKEN_SIGN}<|channel|>commentary to=functions.add{TOKEN_SIGN}<|message|>"
    assert split([head + call], marks_are_tokens=True) == ("", CALLED + call)


def test_what_is_clear_is_not_held_back() -> None:
    splitter = ChannelSplitter(marks_are_tokens=False)
    pieces = ["<|channel|>", "analysis", "<|message|>", "one", " two ", "<", "3", "<|end|>", "<|start|>", "assistant"]
    fed = [splitter.feed(text) for text in pieces]
    assert fed == [*[("", "")] * 3, ("one", ""), (" two", ""), ("", ""), (" <3", ""), *[("", "")] * 3]
    assert splitter.in_header
    fed = [splitter.feed(text) for text in ("<|channel|>", "final", "<|message|>", "Yes ", "no", "<|return|>")]
    assert fed == [*[("", "")] * 3, ("", "Yes "), ("", "no"), ("", "")]
    assert not splitter.is_thinking


MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"]
WORDS = ["assistant", "analysis", "final", "commentary", " to=functions.add", "hm", "\n", " ", "<|", "{}", "to="]


@given(st.lists(st.sampled_from(MARKS + WORDS), max_size=30))
def test_no_text_breaks_it_and_no_cut_changes_it(pieces: list[str]) -> None:
    whole = split(["".join(pieces)])
    assert split(pieces) == whole
    assert split(list("".join(pieces))) == whole
