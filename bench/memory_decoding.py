"""What decoding loses while another chat's pages are saved: many short comparisons within single streams.

Each comparison is one stream that decodes. First it is alone; then another chat is computed, which does not count; then
that chat's pages are saved at `memory.write_bytes_per_s`; then the stream is alone again. Its rate while pages are
saved is compared with the mean of its rates before and after, so that a machine whose speed drifts disturbs little. The
median of all comparisons counts, with its confidence interval from order statistics.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

from bench.memory_rig import Rig, Stream, new_grant

_ALONE_S = 0.4
_LEAST_TOKENS = 8
"""Fewest tokens per window, so that a slow model's rates mean something."""
_SAVED_BYTES = 6 << 20
"""Bytes saved per comparison: at 8 MiB/s three quarters of a second."""
_LEAST_PAGES = 3
"""The first ones do not wait for the pace."""
_TIMEOUT_S = 120.0


def decoding_while_saving(rig: Rig, comparisons: int) -> dict[str, float]:
    """The median ratio of the rates with its 95 % interval, and both rates in tokens a second.

    The rig's engine saves when a chat is idle, at once. Raises RuntimeError if pages are saved too fast to compare.
    """
    rng = random.Random(0)
    pages = max(_SAVED_BYTES // rig.page_bytes, _LEAST_PAGES)
    alone, saving = [], []
    for number in range(comparisons + 1):
        rig.grant = new_grant(rng)
        one = _compare(rig, rng, pages)
        rig.save()
        rig.clear()
        rig.remove_files()
        if number:  # the first one warms up
            alone.append(one[0])
            saving.append(one[1])
    ratios = sorted(one / other for one, other in zip(saving, alone, strict=True))
    low, high = median_interval(ratios)
    return {
        "alone_tokens_per_s": round(statistics.median(alone), 2),
        "saving_tokens_per_s": round(statistics.median(saving), 2),
        "saving_over_alone": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "comparisons": comparisons,
    }


def _compare(rig: Rig, rng: random.Random, pages: int) -> tuple[float, float]:
    """The stream's tokens a second alone, and while the pages are saved."""
    vocabulary = rig.runner.vocab_size
    prompt = [rng.randrange(vocabulary) for _ in range(64)]
    stream, name = rig.start(prompt, rig.runner.max_context_tokens - 64, saved=False)
    _wait_until(stream, lambda: len(stream.times) >= 2)
    before = _window(stream)
    saved = rig.memory.saves.saved_pages
    chat, _ = rig.start([rng.randrange(vocabulary) for _ in range(pages * rig.page_tokens + 1)], 1, saved=True)
    chat.wait()
    saves = rig.memory.saves
    _wait_until(stream, lambda: saves.wanted_pages > 0 or saves.saved_pages > saved)  # the chat counts as idle
    began_s = time.perf_counter()
    _wait_until(stream, lambda: saves.saved_pages >= saved + pages)
    during = tokens_per_s(stream.times, began_s, time.perf_counter())
    after = _window(stream)
    assert rig.engine is not None
    rig.engine.abort(name)
    return (before + after) / 2, during


def _window(stream: Stream) -> float:
    began_s = time.perf_counter()
    tokens = len(stream.times) + _LEAST_TOKENS
    _wait_until(stream, lambda: time.perf_counter() >= began_s + _ALONE_S and len(stream.times) >= tokens)
    return tokens_per_s(stream.times, began_s, time.perf_counter())


def _wait_until(stream: Stream, condition: Callable[[], bool]) -> None:
    """Raises RuntimeError if the stream ends before that, or it takes minutes."""
    limit_s = time.perf_counter() + _TIMEOUT_S
    while not condition():
        if stream.has_ended or time.perf_counter() > limit_s:
            raise RuntimeError("the decoding stream ended before the pages were saved: raise --write-bytes-per-s")
        time.sleep(0.002)


def tokens_per_s(times: Sequence[float], began_s: float, ended_s: float) -> float:
    """Rate from the first to the last token within that time. Raises RuntimeError for fewer than three tokens."""
    within = [time_s for time_s in list(times) if began_s <= time_s <= ended_s]
    if len(within) < 3 or within[-1] <= within[0]:
        raise RuntimeError("no three tokens were made while pages were saved: lower --write-bytes-per-s")
    steps = sum(time_s > within[0] for time_s in within)  # tokens of the first step were made before
    return steps / (within[-1] - within[0])


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median by the binomial distribution; the extremes if there are few."""
    count = len(ordered)
    below, tail = 0, 0.5**count
    while below + 1 < count / 2 and tail + math.comb(count, below + 1) * 0.5**count <= 0.025:
        below += 1
        tail += math.comb(count, below) * 0.5**count
    rank = below if tail <= 0.025 else 0
    return ordered[rank], ordered[count - 1 - rank]
