from typing import Any

import pytest

from bench.conversations.find_rate import CLOSE, bracket, find_rate


def serves(limit: float, tried: list[float], most: int = 1000) -> Any:
    """Keeps the promise up to a rate, and has time for so many probes."""

    def probe(rate: float) -> dict[str, Any] | None:
        if len(tried) == most:
            return None
        tried.append(rate)
        return {"promise": {"kept": rate <= limit}}

    return probe


@pytest.mark.parametrize("first_rate", [0.1, 1.0, 30.0])
def test_it_comes_within_a_tenth(first_rate: float) -> None:
    tried: list[float] = []
    found = find_rate(serves(2.0, tried), first_rate, kept_rate=0.05, most_probes=40)
    assert found.broken_rate is not None
    assert found.rate <= 2.0 < found.broken_rate <= found.rate * CLOSE
    assert [one.rate for one in found.probes] == tried
    assert found.not_reached == ""


@pytest.mark.parametrize(
    ("limit", "tried"), [(2.1, [2.0, 2.2]), (1.9, [2.0, 2.0 / 1.1]), (2.3, [2.0, 2.2, 2.42]), (1.0, None)]
)
def test_a_search_near_its_end_needs_few_probes(limit: float, tried: list[float] | None) -> None:
    done: list[float] = []
    found = find_rate(serves(limit, done), 2.0, kept_rate=0.5, step=CLOSE)
    assert tried is None or done == pytest.approx(tried)
    assert found.rate <= limit < (found.broken_rate or 0.0)
    assert found.not_reached == ""


def test_it_never_goes_below_the_rate_of_one_client_alone() -> None:
    tried: list[float] = []
    found = find_rate(serves(0.0, tried), 5.0, kept_rate=1.0)
    assert min(tried) > 1.0
    assert found.rate == 1.0
    assert found.broken_rate is not None
    assert found.broken_rate <= CLOSE
    assert found.not_reached == ""
    assert find_rate(serves(0.0, []), 0.1, kept_rate=1.0).rate == 1.0


def test_it_ends_after_so_many_probes() -> None:
    tried: list[float] = []
    found = find_rate(serves(1e9, tried), 1.0, kept_rate=0.5, most_probes=5)
    assert len(tried) == 5
    assert found.rate == pytest.approx(1.5**4)
    assert found.broken_rate is None
    assert found.not_reached == "5 probes were not enough"


def test_it_ends_without_time_and_says_so() -> None:
    found = find_rate(serves(2.0, [], most=2), 1.0, kept_rate=0.5)
    assert (found.rate, found.broken_rate) == (1.5, None)
    assert found.not_reached == "no time was left for a probe at 2.25 a second"


def test_a_lucky_probe_above_a_broken_one_does_not_count() -> None:
    tried: list[float] = []

    def noisy(rate: float) -> dict[str, Any]:
        tried.append(rate)
        return {"promise": {"kept": len(tried) not in (2,)}}

    found = find_rate(noisy, 1.0, kept_rate=0.1, most_probes=30)
    assert found.broken_rate == pytest.approx(1.5)
    assert found.rate < 1.5
    assert bracket(found.probes, 0.1) == (found.rate, found.broken_rate)
