from hypothesis import given
from hypothesis import strategies as st

from app.engine.speculative.drafter import NgramDrafter


def test_guesses_are_what_followed_the_last_tokens_before() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
    drafter = NgramDrafter(tokens)
    assert drafter.look_up(9) == [4, 5, 6, 9, 1, 2, 3, 4, 5]
    assert drafter.look_up(2) == [4, 5]
    tokens += [4, 7]  # 4, 7 is new
    assert drafter.look_up(8) == []
    assert drafter.chances() == []
    tokens += [2, 3]
    assert drafter.look_up(2) == [4, 7]  # two tokens are enough, and the latest place counts
    tokens += [4, 5, 6, 9]
    assert drafter.look_up(3) == [1, 2, 3]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 9))
def test_guesses_are_always_a_part_of_the_text_after_its_end(text: list[int], most: int) -> None:
    tokens: list[int] = []
    drafter = NgramDrafter(tokens)
    for token in text:
        tokens.append(token)
        guesses = drafter.look_up(most)
        assert len(guesses) <= most
        if guesses:
            continued = [*tokens, *guesses]
            pieces = [continued[i : i + 2 + most] for i in range(len(tokens) - 2)]
            assert [*tokens[-2:], *guesses] in pieces


def test_it_starts_over_when_tokens_were_removed() -> None:
    tokens = [1, 2, 3, 4, 1, 2]
    drafter = NgramDrafter(tokens)
    assert drafter.look_up(1) == [3]
    del tokens[:4]
    drafter.forget()
    assert drafter.look_up(1) == []


def follow(drafter: NgramDrafter, tokens: list[int], came: int) -> list[int]:
    """Guesses three tokens; then `came` is sampled."""
    guesses = drafter.look_up(3)
    if guesses:
        drafter.learn([came])
    tokens.append(came)
    return guesses


def test_guesses_continue_behind_a_token_that_differs_from_the_source() -> None:
    source = list(range(10, 20))
    tokens = [*source, 1, 10, 11, 12]
    drafter = NgramDrafter(tokens)
    assert follow(drafter, tokens, 5) == [13, 14, 15]  # 5 instead of 13
    assert follow(drafter, tokens, 14) == [14, 15, 16]
    assert follow(drafter, tokens, 16) == [15, 16, 17]  # 15 is left out: the source continues behind 16, which is near
    assert follow(drafter, tokens, 17) == [17, 18, 19]


def test_a_source_is_dropped_after_mismatches() -> None:
    tokens = [*range(10, 30), 1, 10, 11, 12]
    drafter = NgramDrafter(tokens)
    found = [bool(follow(drafter, tokens, 100 + number)) for number in range(8)]
    assert found == [True, True, True, True, False, False, False, False]


def test_chances_are_learned_by_number_of_agreeing_tokens() -> None:
    """Guesses after three agreeing tokens are right, after two wrong: each number has its own chance."""
    tokens = list[int]()
    drafter = NgramDrafter(tokens)
    for number in range(200):
        pair = (number % 7, 50 + number % 7)
        tokens += [number % 7 + 20, *pair] if number % 2 else [1000 + number, *pair]
        guesses = drafter.look_up(2)
        chances = drafter.chances()
        assert len(chances) <= len(guesses)
        assert chances == sorted(chances, reverse=True)
        if guesses:
            agrees = number % 2 and tokens[-3:] == [number % 7 + 20, *pair] and drafter._agreement >= 3
            came = guesses[0] if agrees else 2000 + number
            drafter.learn([came])
            tokens.append(came)
    assert drafter._chances[2] < 0.1
    assert drafter._chances[3] > 0.9


def test_chances_fall_while_guesses_are_wrong_and_rise_again() -> None:
    tokens = [1, 2, 3] * 10
    drafter = NgramDrafter(tokens)
    first = []
    for right in [False] * 30 + [True] * 30:
        guesses = drafter.look_up(6)
        chances = drafter.chances()
        first.append(chances[0] if chances else 0.0)
        drafter.learn([guesses[0] if right else 999])  # no guess is computed, yet chances are learned
    assert max(first[20:30]) < 0.1
    assert first[-1] > 0.9
    assert len(drafter.chances()) == 6


def test_nothing_is_learned_without_a_sampled_token() -> None:
    drafter = NgramDrafter([1, 2, 3, 4, 1, 2])
    before = drafter.look_up(2), drafter.chances()
    drafter.learn([])
    assert (drafter.look_up(2), drafter.chances()) == before
