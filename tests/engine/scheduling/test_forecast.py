from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.engine.scheduling.forecast import OutputForecast, peak_pages


def test_outputs_are_expected_to_be_like_recent_longer_ones() -> None:
    forecast = OutputForecast(100, memory=3)
    assert forecast.remaining(0) == 100
    assert forecast.remaining(40) == 60
    forecast.record(10)
    forecast.record(30)
    assert forecast.remaining(0) == 47  # (100 + 30 + 10) / 3, rounded up
    assert forecast.remaining(10) == 55  # (100 + 30) / 2 - 10
    forecast.record(20)  # pushes out the 100
    assert forecast.remaining(25) == 5
    assert forecast.remaining(30) == 30  # longer than all of them: expected to double


@given(st.lists(st.integers(0, 500)), st.integers(0, 600))
def test_at_least_one_token_is_always_expected(ended: list[int], generated: int) -> None:
    forecast = OutputForecast(256, memory=8)
    for output_tokens in ended:
        forecast.record(output_tokens)
    assert forecast.remaining(generated) >= 1


def test_an_early_end_frees_pages_for_a_late_one() -> None:
    # Pages of 1 token. At the end of the first: 10 + 2 + 10 + 2; at the end of the second: 10 + 20.
    assert peak_pages([(10, 2), (10, 20)], 1) == 30
    # 50 + 1 + 10 + 1 against 10 + 20: the peak is at the first end.
    assert peak_pages([(50, 1), (10, 20)], 1) == 62


def highest_need(sequences: list[tuple[int, int]], page_tokens: int, most: Sequence[int | None] = (None,)) -> int:
    """Step after step, what `peak_pages` puts in a formula."""
    alive = [list(pair) for pair in sequences]
    peak = 0
    while alive:
        pages = [-(-tokens // page_tokens) for tokens, _ in alive]
        peak = max(peak, sum(each if limit is None else min(each, limit) for each in pages for limit in most))
        alive = [[tokens + 1, remaining - 1] for tokens, remaining in alive if remaining > 0]
    return peak


SEQUENCES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40)), max_size=8)


@given(SEQUENCES, st.integers(1, 8))
def test_the_peak_is_the_highest_need_over_time(sequences: list[tuple[int, int]], page_tokens: int) -> None:
    assert peak_pages(sequences, page_tokens) == highest_need(sequences, page_tokens)


@given(SEQUENCES, st.integers(1, 8), st.lists(st.one_of(st.none(), st.integers(1, 12)), min_size=1, max_size=4))
def test_groups_with_windows_need_their_windows_at_most(
    sequences: list[tuple[int, int]], page_tokens: int, most: list[int | None]
) -> None:
    assert peak_pages(sequences, page_tokens, most) == highest_need(sequences, page_tokens, most)
