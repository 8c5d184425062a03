"""Figures of one run: rates, latencies, errors, and whether the SLO was met. Sends nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from bench.conversations.client import Receipt
from bench.conversations.plan import Selection, model_of

NO_TEXT: Final = "no text"
"""Failure of an answer whose tokens, few or special ones, gave no text: its times are unknown."""
SAMPLES: Final = "samples"
"""Key of the single requests' times, with which rounds are pooled; not in the JSON."""


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level objective; a run meets it if this share of all requests does."""

    first_token_s: float = 3.0
    token_s: float = 0.2
    share: float = 0.95


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Times of a complete answer."""

    first_s: float
    """Time from when the request was due to its first text."""
    token_s: float | None
    """Time per token after the first text; None for an answer of one token."""

    def keeps(self, slo: Slo) -> bool:
        """Whether this request meets the SLO."""
        return self.first_s <= slo.first_token_s and (self.token_s is None or self.token_s <= slo.token_s)


def checked(receipts: Sequence[Receipt], selection: Selection) -> list[tuple[Receipt, str]]:
    """Each receipt with its failure: the client's, or an answer that is not as long as was ordered."""
    result = []
    for one in receipts:
        ordered = selection.conversations[one.conversation].requests[one.turn].answer_tokens
        error = one.error
        if not error and one.tokens != ordered:
            error = "not the ordered number of tokens"
        elif not error and not one.event_times_s:
            error = NO_TEXT
        result.append((one, error))
    return result


def figures(receipts: Sequence[Receipt], selection: Selection, slo: Slo, models: Sequence[str] = ()) -> dict[str, Any]:
    """The figures of a run, ready for JSON. Requests that failed count against the SLO, and for no time.

    models: those that conversations went to, in turn; with several each has its own times besides.
    """
    results = checked(receipts, selection)
    good = [one for one, error in results if not error]
    ordered = sum(len(one.requests) for one in selection.conversations)
    times = [request_times(one) for one in good]
    gaps_s = [after - before for one in good for before, after in pairwise(one.event_times_s)]
    end_s = max((one.end_s for one in receipts), default=0.0)
    took_s = end_s - min((one.due_s for one in receipts), default=0.0)
    kept = sum(one.keeps(slo) for one in times) / ordered
    begun_s = sorted(one.sent_s for one in receipts if one.turn == 0)
    samples = {
        "first_token_s": [round(one.first_s, 5) for one in times],
        "token_s": [round(one.token_s, 5) for one in times if one.token_s is not None],
        "event_gap_s": [round(gap_s, 5) for gap_s in gaps_s],
    }
    return {
        "requests": ordered,
        "completed": len(good),
        "errors": dict(Counter(error for _, error in results if error)),
        "not_sent": ordered - len(results),
        "took_s": round(took_s, 3),
        "conversations_begun_per_s": _rate(begun_s),
        "requests_per_s": round(len(good) / took_s, 4) if took_s else 0.0,
        "tokens_per_s": round(sum(one.tokens for one in good) / took_s, 2) if took_s else 0.0,
        "prompt_tokens": sum(one.prompt_tokens for one in good),
        "cached_prompt_tokens": sum(one.cached_tokens for one in good),
        "answer_tokens": sum(one.tokens for one in good),
        "first_token_s": quantiles(samples["first_token_s"]),
        "token_s": quantiles(samples["token_s"]),
        "event_gap_p99_s": quantiles(samples["event_gap_s"]).get("p99"),
        "sent_late_most_s": round(max((one.sent_s - one.due_s for one in receipts), default=0.0), 4),
        "promise": {**asdict(slo), "kept_share": round(kept, 4), "kept": kept >= slo.share},
        **({"by_model": _by_model(good, models)} if len(models) > 1 else {}),
        SAMPLES: samples,
    }


def _by_model(good: Sequence[Receipt], models: Sequence[str]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for model in models:
        times = [request_times(one) for one in good if model_of(one.conversation, models) == model]
        result[model] = {
            "completed": len(times),
            "first_token_s": quantiles([one.first_s for one in times]),
            "token_s": quantiles([one.token_s for one in times if one.token_s is not None]),
        }
    return result


def without_samples(found: Mapping[str, Any]) -> dict[str, Any]:
    """Figures for the JSON, which has no single request."""
    return {name: value for name, value in found.items() if name != SAMPLES}


def pooled(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Percentiles over the requests of all rounds together; None where there is no request."""
    pools = {
        name: [value for one in rounds for value in one[SAMPLES][name]]
        for name in ("first_token_s", "token_s", "event_gap_s")
    }
    result: dict[str, float | None] = {}
    for name in ("first_token", "token"):
        found = quantiles(pools[f"{name}_s"])
        result |= {f"{name}_{p}_s": found.get(p) for p in ("p50", "p95", "p99")}
    return result | {"event_gap_p99_s": quantiles(pools["event_gap_s"]).get("p99")}


def request_times(one: Receipt) -> RequestTimes:
    """The times of a complete answer."""
    first_s, last_s = one.event_times_s[0], one.event_times_s[-1]
    return RequestTimes(first_s - one.due_s, (last_s - first_s) / (one.tokens - 1) if one.tokens > 1 else None)


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """The median, 95 % and 99 %; empty without values."""
    if not seconds:
        return {}
    return {f"p{percent}": round(float(np.percentile(seconds, percent)), 5) for percent in (50, 95, 99)}


def _rate(times_s: Sequence[float]) -> float | None:
    """Rate of events at these times, in order, from the first to the last."""
    took_s = times_s[-1] - times_s[0] if times_s else 0.0
    return round((len(times_s) - 1) / took_s, 4) if took_s else None
