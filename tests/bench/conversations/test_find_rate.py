from typing import Any

import pytest

from bench.conversations.find_rate import CLOSE, bracket, find_rate


def serves(limit: float, tried: list[float]) -> Any:
    def probe(rate: float) -> dict[str, Any]:
        tried.append(rate)
        return {"promise": {"kept": rate <= limit}}

    return probe


@pytest.mark.parametrize("first_rate", [0.1, 1.0, 30.0])
def test_it_comes_within_a_tenth(first_rate: float) -> None:
    tried: list[float] = []
    found = find_rate(serves(2.0, tried), first_rate, most_probes=40)
    assert found.broken_rate is not None
    assert found.rate <= 2.0 < found.broken_rate <= found.rate * CLOSE
    assert [one.rate for one in found.probes] == tried


def test_it_ends_after_so_many_probes() -> None:
    tried: list[float] = []
    found = find_rate(serves(0.0, tried), 1.0, most_probes=5)
    assert (found.rate, len(tried)) == (0.0, 5)
    assert found.broken_rate == pytest.approx(1.0 / 1.5**4)


def test_a_lucky_probe_above_a_broken_one_does_not_count() -> None:
    tried: list[float] = []

    def noisy(rate: float) -> dict[str, Any]:
        tried.append(rate)
        return {"promise": {"kept": len(tried) not in (2,)}}

    found = find_rate(noisy, 1.0, most_probes=30)
    assert found.broken_rate == pytest.approx(1.5)
    assert found.rate < 1.5
    assert bracket(found.probes) == (found.rate, found.broken_rate)
