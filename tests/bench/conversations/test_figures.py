import pytest

from bench.conversations.client import Receipt
from bench.conversations.figures import Slo, figures, pooled, without_samples
from bench.conversations.plan import PlannedConversation, Selection, TurnRequest

REQUEST = TurnRequest((("user", "a"),), (), 5, 3)


def selection(*requests: int) -> Selection:
    chosen = tuple(PlannedConversation(str(i), (REQUEST,) * count) for i, count in enumerate(requests))
    return Selection(chosen, 0, 0)


def receipt(
    conversation: int, *, due_s: float = 0.0, first_s: float = 1.0, token_s: float = 0.1, **change: object
) -> Receipt:
    times_s = [due_s + first_s + token_s * number for number in range(3)]
    values = {"event_times_s": times_s, "end_s": times_s[-1], "prompt_tokens": 5, "cached_tokens": 2, "tokens": 3}
    return Receipt(**{"conversation": conversation, "turn": 0, "due_s": due_s, "sent_s": due_s} | values | change)  # type: ignore[arg-type]


def test_rates_and_times() -> None:
    found = figures([receipt(0), receipt(1, due_s=2.0, first_s=1.8, token_s=0.05)], selection(1, 1), Slo())
    assert found["took_s"] == 3.9
    assert found["requests_per_s"] == pytest.approx(2 / 3.9, abs=1e-4)
    assert found["tokens_per_s"] == pytest.approx(6 / 3.9, abs=1e-2)
    assert found["first_token_s"]["p50"] == pytest.approx(1.4)
    assert found["token_s"]["p50"] == pytest.approx(0.075)
    assert found["event_gap_p99_s"] == pytest.approx(0.1, abs=1e-3)
    assert (found["prompt_tokens"], found["cached_prompt_tokens"], found["errors"]) == (10, 4, {})


def test_an_event_of_several_tokens_has_their_time() -> None:
    one = receipt(0, event_times_s=[1.0, 1.4])
    assert figures([one], selection(1), Slo())["token_s"]["p50"] == pytest.approx(0.2)


def test_models_that_are_served_together_have_their_own_times() -> None:
    receipts = [
        receipt(0),
        receipt(1, first_s=2.0),
        receipt(2),
        receipt(3, error="timeout", event_times_s=[], tokens=0),
    ]
    found = figures(receipts, selection(1, 1, 1, 1), Slo(), ["a", "b"])
    assert {name: one["completed"] for name, one in found["by_model"].items()} == {"a": 2, "b": 1}
    assert found["by_model"]["b"]["first_token_s"]["p50"] == pytest.approx(2.0)
    assert "by_model" not in figures(receipts, selection(1, 1, 1, 1), Slo(), ["a"])


def test_an_answer_of_another_length_has_failed() -> None:
    found = figures([receipt(0, tokens=2), receipt(1)], selection(1, 1), Slo())
    assert found["errors"] == {"not the ordered number of tokens": 1}
    assert found["completed"] == 1
    assert found["answer_tokens"] == 3


def test_failures_are_counted_by_kind_and_break_the_promise() -> None:
    failed = receipt(0, error="status 429", event_times_s=[], tokens=0)
    found = figures([failed, receipt(1)], selection(2, 1), Slo())
    assert found["errors"] == {"status 429": 1}
    assert (found["requests"], found["not_sent"]) == (3, 1)
    assert found["promise"]["kept_share"] == pytest.approx(1 / 3, abs=1e-3)
    assert not found["promise"]["kept"]


@pytest.mark.parametrize(("first_s", "token_s", "kept"), [(2.9, 0.19, True), (3.1, 0.1, False), (1.0, 0.21, False)])
def test_the_promise_is_of_both_times(first_s: float, token_s: float, kept: bool) -> None:
    found = figures([receipt(0, first_s=first_s, token_s=token_s)], selection(1), Slo())
    assert found["promise"]["kept"] is kept


def test_one_of_twenty_may_be_slow() -> None:
    some = [receipt(number, first_s=9.0 if number == 0 else 1.0) for number in range(20)]
    assert figures(some, selection(*[1] * 20), Slo())["promise"]["kept"]
    some[1] = receipt(1, first_s=9.0)
    assert not figures(some, selection(*[1] * 20), Slo())["promise"]["kept"]


def test_the_rate_of_conversations_that_began_is_told() -> None:
    some = [receipt(number, due_s=2.0 * number) for number in range(5)]
    assert figures(some, selection(*[1] * 5), Slo())["conversations_begun_per_s"] == 0.5
    assert figures([receipt(0)], selection(1), Slo())["conversations_begun_per_s"] is None


def test_percentiles_are_of_the_requests_of_all_rounds() -> None:
    slow = figures([receipt(0, first_s=5.0), *(receipt(i) for i in range(1, 50))], selection(*[1] * 50), Slo())
    fast = figures([receipt(number) for number in range(50)], selection(*[1] * 50), Slo())
    assert slow["first_token_s"]["p99"] > 2
    assert pooled([slow, fast, fast])["first_token_p99_s"] == 1.0
    assert pooled([slow, fast, fast])["event_gap_p99_s"] == pytest.approx(0.1)
    assert pooled([figures([], selection(1), Slo())])["token_p50_s"] is None
    assert set(slow) - set(without_samples(slow)) == {"samples"}
