import statistics
from itertools import pairwise

import pytest

from bench.conversations.data import Conversation, Turn
from bench.conversations.plan import Bounds, arrival_times_s, mapped_id, select

BOUNDS = Bounds(turns=2, max_prompt_tokens=100, max_answer_tokens=3)


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def conversation(name: str, *turns: tuple[str, str], system: str = "") -> Conversation:
    return Conversation(name, system, tuple(Turn(*turn) for turn in turns))


def test_each_turn_has_the_datas_history_and_length() -> None:
    one = conversation("a", ("one two", "a b c d e"), ("three", "a"), ("four", "b"), system="be brief")
    chosen = select([one], 5, BOUNDS, words, vocab_size=None, seed=1)
    first, second = chosen.conversations[0].requests
    assert first.messages == (("system", "be brief"), ("user", "one two"))
    assert (first.prompt_tokens, first.answer_tokens) == (4 + 3 * 8, 3)
    assert second.messages[2:] == (("assistant", "a b c d e"), ("user", "three"))
    assert (second.prompt_tokens, second.answer_tokens) == (10 + 5 * 8, 1)
    assert chosen.cut_answers == 1
    assert chosen.context_tokens == 51


def test_too_long_prompts_are_left_out_and_counted() -> None:
    long = conversation("long", ("w " * 200, "a"))
    later = conversation("later", ("w", "a " * 150), ("w", "a"))
    chosen = select([long, later], 2, BOUNDS, words, vocab_size=None, seed=1)
    assert [(one.id, len(one.requests)) for one in chosen.conversations] == [("later", 1)]
    assert chosen.about()["left_out_as_too_long"] == 1


def test_an_empty_answer_is_no_request_but_part_of_the_history() -> None:
    one = conversation("a", ("one", ""), ("two", "b"))
    (request,) = select([one], 1, BOUNDS, words, vocab_size=None, seed=1).conversations[0].requests
    assert request.messages == (("user", "one"), ("assistant", ""), ("user", "two"))


def test_token_ids_are_ordinary_ones_of_the_model() -> None:
    one = conversation("a", ("w " * 9 + "much longer words", "a b"))
    (request,) = select([one], 1, BOUNDS, words, vocab_size=515, seed=1).conversations[0].requests
    assert request.messages == ()
    assert len(request.token_ids) == request.prompt_tokens == 12
    assert set(request.token_ids) <= {512, 513, 514}
    assert mapped_id(49151, 32000) == mapped_id(49151, 32000) < 32000


def test_the_choice_follows_the_seed() -> None:
    some = [conversation(str(number), ("a", "b")) for number in range(50)]
    first, again, other = (select(some, 10, BOUNDS, words, vocab_size=None, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.about()["ids_sha256"] != other.about()["ids_sha256"]
    assert [one.id for one in first.part(8, 4).conversations] == [
        first.conversations[number].id for number in (8, 9, 0, 1)
    ]


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    times_s = arrival_times_s(4001, 5.0, seed=3)
    gaps_s = [after - before for before, after in pairwise(times_s)]
    assert times_s[0] == 0
    assert abs(statistics.pstdev(gaps_s) - 0.2) < 0.03
    slower_s = arrival_times_s(4001, 2.5, seed=3)
    assert all(abs(slow - 2 * fast) < 1e-6 for slow, fast in zip(slower_s, times_s, strict=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 20, 48, 100, 200])
def test_few_arrivals_have_the_rate_that_was_asked_for_too(count: int, seed: int) -> None:
    times_s = arrival_times_s(count, 0.7, seed)
    assert len(times_s) == count
    assert times_s == sorted(times_s)
    assert (count - 1) / times_s[-1] == pytest.approx(0.7)


def test_each_seed_has_other_arrivals() -> None:
    begins = {tuple(arrival_times_s(20, 1.0, seed)[1:4]) for seed in range(10)}
    assert len(begins) == 10
    assert arrival_times_s(1, 1.0, 0) == [0.0]


def test_conversations_that_come_again_are_counted() -> None:
    some = [conversation(str(number), ("a", "b")) for number in range(5)]
    chosen = select(some, 5, BOUNDS, words, vocab_size=None, seed=1)
    assert [chosen.repeated(count) for count in (4, 5, 7)] == [0, 0, 2]
