"""The watch over an output's tokens: where it has a thought, and where the end of the thought must be written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.messages.thoughts import ThoughtBudget, ThoughtWatch

END = (90, 91, 92)
AGAIN = (95, 96)
OPENING, CLOSING = b"<t>", b"</t>"
PIECES = [b"<", b"t", b">", b"/", b"</", b"t>", b"<t>", b"</t>", b">\n", b".<", b" ", b"\n", b"a", b"ab", b"word "]
CHARACTERS = [bytes([byte]) for byte in "é日🎉".encode()]
TABLE = dict(enumerate(PIECES + CHARACTERS))
PLAIN = {12, 13, 14}
"""Tokens that no mark touches: a budget has no bytes of them."""
SPELLED = {token: text for token, text in TABLE.items() if token not in PLAIN}


def budget(tokens: int, *, is_open: bool, again: tuple[int, ...] = ()) -> ThoughtBudget:
    return ThoughtBudget(tokens, END, OPENING, CLOSING, SPELLED, is_open=is_open, end_again=again)


def expected_place(ids: list[int], tokens: int, *, is_open: bool) -> int | None:
    """After how many tokens the end must be written, from the whole text; None: nowhere."""
    count = None if not is_open else 0
    for length in range(1, len(ids) + 1):
        text = b"".join(TABLE[token] for token in ids[:length])
        if count is None:
            begun = text.lstrip()
            if begun.startswith(OPENING):
                count = 0
            elif not OPENING.startswith(begun):
                return None
            begin = text.find(OPENING) + len(OPENING)
        else:
            count += 1
            if CLOSING in text[0 if is_open else begin :]:
                return None
        if count is not None and count >= tokens and (is_whole(text) or count >= tokens + 3):
            return length
    return None


def is_whole(text: bytes) -> bool:
    for end in range(len(text), max(len(text) - 4, -1), -1):
        if end == 0 or text[end - 1] < 0x80:
            return end == len(text) or set(text[end:]) <= set(range(0x80, 0xC0))
        if text[end - 1] >= 0xC0:
            length = 2 if text[end - 1] < 0xE0 else 3 if text[end - 1] < 0xF0 else 4
            return len(text) - end + 1 >= length
    return True


@given(st.lists(st.sampled_from(sorted(TABLE)), max_size=20), st.integers(0, 6), st.booleans())
def test_it_finds_the_place_that_the_text_says(ids: list[int], tokens: int, is_open: bool) -> None:
    watch = ThoughtWatch(budget(tokens, is_open=is_open))
    expected = expected_place(ids, tokens, is_open=is_open)
    for length, token in enumerate(ids, start=1):
        assert ThoughtWatch(budget(tokens, is_open=is_open)).free(ids[:length]) == min(
            length, length if expected is None else expected - 1
        )
        written = watch.add(token)
        assert written == (END if length == expected else ())
        if written:
            assert not watch.was_cut
            assert [watch.add(token) for token in END] == [()] * 3
            assert watch.was_cut
            assert watch.is_over
            return
    assert not watch.was_cut


def test_the_end_waits_for_a_whole_character_but_not_for_ever() -> None:
    emoji = [len(PIECES) + place for place in range(5, 9)]
    watch = ThoughtWatch(budget(1, is_open=True))
    assert [watch.add(token) for token in emoji] == [(), (), (), END]
    watch = ThoughtWatch(budget(2, is_open=True))
    assert [watch.add(emoji[0]) for _ in range(5)] == [(), (), (), (), END]


def test_a_thought_that_ends_by_itself_in_time() -> None:
    watch = ThoughtWatch(budget(3, is_open=True))
    assert [watch.add(token) for token in (12, 13, 7)] == [(), (), ()]
    assert watch.is_over
    assert not watch.was_cut


@pytest.mark.parametrize("first", [12, 0, 3])
def test_an_output_that_does_not_think(first: int) -> None:
    watch = ThoughtWatch(budget(0, is_open=False))
    assert [watch.add(token) for token in (first, 12, 6, 12, 12)] == [()] * 5
    assert watch.is_over


def test_several_thoughts_share_one_budget() -> None:
    """As in channels: what begins when nothing is left ends at once, and the other way."""
    watch = ThoughtWatch(budget(3, is_open=False, again=AGAIN))
    for token in (6, 12, 13, 7, 12):  # two tokens, and the closing mark as the third
        assert watch.add(token) == ()
    assert watch.add(6) == END
    assert [watch.add(token) for token in END] == [()] * 3
    assert watch.was_cut
    assert [watch.add(token) for token in (12, 0, 1)] == [()] * 3
    assert watch.free([2, 12]) == 0
    assert watch.add(2) == AGAIN
    assert [watch.add(token) for token in AGAIN] == [()] * 2
    assert not watch.is_over
    assert watch.add(6) == AGAIN
