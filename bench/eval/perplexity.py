"""Perplexity on a text, and the divergence from a baseline model on the same text.

Each window is scored on its own, from its second token on. Does not know how models are opened or options given.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from bench.eval.journal import Journal
from bench.eval.paired import paired_perplexity
from quant.calibration.log_probabilities import divergence, log_probabilities
from quant.packed.native_model import NativeModel

PERCENTILES: Final = (50, 90, 95, 99, 99.9)

Tick = Callable[[], object]
"""Called after each window."""


def perplexity(
    model: NativeModel, windows: Sequence[Sequence[int]], journal: Journal, key: str, tick: Tick
) -> dict[str, Any]:
    """Perplexity and its standard error, over every token but the windows' first ones."""
    return text_result(window_scores(model, windows, journal, key, tick))


def window_scores(
    model: NativeModel, windows: Sequence[Sequence[int]], journal: Journal, key: str, tick: Tick
) -> list[list[float]]:
    """Each window's log probabilities, from its second token on."""
    scores: list[list[float]] = []
    for number, ids in enumerate(windows):
        scores.append(journal.get(f"{key}/{number}", partial(_scores, model, ids)))
        tick()
    return scores


def text_result(scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Perplexity over all windows; also each one's log probability, by which models compare in pairs."""
    sums = {
        "log_probability": [round(sum(window), 3) for window in scores],
        "tokens": [len(window) for window in scores],
    }
    return summary(np.concatenate([np.array(window) for window in scores])) | {"by_window": sums}


def kl_divergence(
    baseline: NativeModel,
    models: Mapping[str, NativeModel],
    windows: Sequence[Sequence[int]],
    journal: Journal,
    tick: Tick,
    *,
    key: str = "kl",
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The baseline's perplexity, and each model's with its divergence from the baseline by token.

    key: the results' key in the journal.
    """
    parts: list[Mapping[str, Any]] = []
    for number, ids in enumerate(windows):
        parts.append(journal.get(f"{key}/{number}", partial(_compare, baseline, models, ids)))
        tick()
    base = np.concatenate([part["baseline"] for part in parts])
    results = {}
    for name in models:
        scores, kl, agree = (np.concatenate([part[name][i] for part in parts]) for i in range(3))
        results[name] = summary(scores) | {"kl": kl_summary(kl), "top1_agreement": float(agree.mean())}
        rise = paired_perplexity(
            [sum(part["baseline"]) for part in parts],
            [sum(part[name][0]) for part in parts],
            [len(part["baseline"]) for part in parts],
        )
        results[name] |= {"perplexity_increase": rise["rise"], "perplexity_increase_stderr": rise["rise_stderr"]}
    return summary(base), results


def summary(scores: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """Perplexity of log probabilities; its standard error is that of the mean, carried through exp."""
    value = float(np.exp(-scores.mean()))
    error = float(scores.std(ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else 0.0
    return {"perplexity": value, "perplexity_stderr": value * error, "tokens": len(scores)}


def kl_summary(kl: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Mean, median, percentiles and maximum of a divergence by token, in nats."""
    values = {f"p{percent:g}": float(np.percentile(kl, percent)) for percent in PERCENTILES}
    return {"mean": float(kl.mean()), "median": values.pop("p50"), **values, "max": float(kl.max())}


def _scores(model: NativeModel, ids: Sequence[int]) -> list[float]:
    scores: list[float] = []
    for begin, logits in model.logits(ids[:-1]):
        scores += _following(ids, begin, logits)
    return scores


def _following(ids: Sequence[int], begin: int, logits: np.ndarray[Any, np.dtype[np.float32]]) -> list[float]:
    targets = np.asarray(ids[begin + 1 : begin + 1 + len(logits)], np.int64)
    return [float(score) for score in log_probabilities(logits, targets)]


def _compare(baseline: NativeModel, models: Mapping[str, NativeModel], ids: Sequence[int]) -> dict[str, Any]:
    base: list[float] = []
    results: dict[str, tuple[list[float], list[float], list[bool]]] = {name: ([], [], []) for name in models}
    for chunks in _together([baseline, *models.values()], ids[:-1]):
        begin, base_logits = chunks[0]
        base += _following(ids, begin, base_logits)
        for (_, logits), (scores, kl, agree) in zip(chunks[1:], results.values(), strict=True):
            scores += _following(ids, begin, logits)
            parts = divergence(base_logits, logits)
            kl += parts.kl.tolist()
            agree += parts.agree.tolist()
    return {"baseline": base, **results}


def _together(
    models: Sequence[NativeModel], ids: Sequence[int]
) -> Iterator[tuple[tuple[int, np.ndarray[Any, np.dtype[np.float32]]], ...]]:
    """Yields the same chunk of every model's logits."""
    yield from zip(*(model.logits(ids) for model in models), strict=True)
