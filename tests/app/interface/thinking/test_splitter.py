"""A thought is split from its answer wherever the text is cut."""

import pytest

from app.interface.thinking.marks import FAMILIES, Thought, marks_of, thought_after
from app.interface.thinking.splitter import ThoughtSplitter

THINK, BRACKETS, SEED, *_ = FAMILIES


def split(thought: Thought, text: str, size: int) -> tuple[str, str, bool]:
    splitter = ThoughtSplitter(thought)
    pieces = [splitter.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(splitter.finish())
    return "".join(one for one, _ in pieces), "".join(other for _, other in pieces), splitter.has_thought


@pytest.mark.parametrize(
    ("is_open", "text", "thought", "answer"),
    [
        (False, "<think>\nhm, 日本\n\nso\n</think>\n\nYes.", "hm, 日本\n\nso", "Yes."),
        (False, "\n <think>hm</think>Yes.\n", "hm", "Yes.\n"),
        (False, "Yes, <think> and </think> are marks.", None, "Yes, <think> and </think> are marks."),
        (False, "<think>a < b </thin> c</think>x </think> y <think>", "a < b </thin> c", "x </think> y <think>"),
        (False, "  No thought", None, "  No thought"),
        (False, "<thi", None, "<thi"),
        (False, "<this>", None, "<this>"),
        (False, "", None, ""),
        (False, " \n", None, " \n"),
        (False, "<think>\n\n</think>\n\nYes", "", "Yes"),
        (False, "<think>cut \n", "cut", ""),
        (False, "<think>cut</thi", "cut</thi", ""),
        (False, "<think>hm</think>\n\n", "hm", ""),
        (True, "hm\n</think>\n\nYes", "hm", "Yes"),
        (True, "\n\n</think>Yes", "", "Yes"),
        (True, "<think>\nhm</think>Yes", "hm", "Yes"),
        (True, "<b>hm</b></think>Yes", "<b>hm</b>", "Yes"),
        (True, "never ends", "never ends", ""),
        (True, "<", "<", ""),
        (True, "", "", ""),
    ],
)
def test_where_it_is_cut_does_not_matter(is_open: bool, text: str, thought: str | None, answer: str) -> None:
    for size in range(1, max(len(text), 1) + 1):
        how = Thought(THINK, is_open, is_expected=True)
        assert split(how, text, size) == (thought or "", answer, thought is not None), size


def test_what_is_clear_is_not_held_back() -> None:
    splitter = ThoughtSplitter(Thought(THINK, is_open=False, is_expected=True))
    fed = [splitter.feed(text) for text in ("<think>", "one", " two ", "</", "think", ">", "\n", "Yes", " <")]
    assert fed == [("", ""), ("one", ""), (" two", ""), ("", ""), ("", ""), ("", ""), ("", ""), ("", "Yes"), ("", " <")]
    assert splitter.is_over
    plain = ThoughtSplitter(Thought(THINK, is_open=False, is_expected=True))
    assert plain.feed("Y") == ("", "Y")


@pytest.mark.parametrize(
    ("template", "tokens", "marks"),
    [
        ("{{ x }}<think>\n", (), THINK),
        ("[THINK]{{ x }}", {"<think>", "</think>"}, BRACKETS),
        ("{{ x }}", {"<seed:think>", "</seed:think>"}, SEED),
        ("{{ x }}", {"[THINK]"}, THINK),
        (None, (), THINK),
    ],
)
def test_a_model_has_the_marks_of_its_template_or_its_vocabulary(
    template: str | None, tokens: set[str], marks: object
) -> None:
    assert marks_of(template, tokens) == marks


@pytest.mark.parametrize(
    ("end", "is_known", "is_open", "is_expected"),
    [
        ("assistant\n", True, False, True),
        ("assistant\n", False, False, False),
        ("assistant\n<think>\n", True, True, True),
        ("assistant\n<think>", False, True, True),
        ("<think>\n\n</think>\n\n", True, False, False),
        ("<think> is a mark<|im_end|>", False, False, False),
    ],
)
def test_how_an_answer_may_begin_is_seen_at_its_prompts_end(
    end: str, is_known: bool, is_open: bool, is_expected: bool
) -> None:
    assert thought_after(THINK, end, is_known=is_known) == Thought(THINK, is_open, is_expected)
