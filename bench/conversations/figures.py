"""Figures of one run: rates, waiting times, errors, and whether the promise was kept. Sends nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bench.conversations.client import Receipt
from bench.conversations.plan import Selection


@dataclass(frozen=True, slots=True)
class Promise:
    """What users are promised; a run keeps it if this share of all requests does."""

    first_token_s: float = 3.0
    token_s: float = 0.2
    share: float = 0.95


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One complete answer."""

    first_s: float
    """From when the request was due to its first text."""
    token_s: float | None
    """From the first text to the last one, for each token after the first; None for an answer of one token."""

    def keeps(self, promise: Promise) -> bool:
        """Whether this one request was as promised."""
        return self.first_s <= promise.first_token_s and (self.token_s is None or self.token_s <= promise.token_s)


def checked(receipts: Sequence[Receipt], selection: Selection) -> list[tuple[Receipt, str]]:
    """Each receipt with its failure: the client's, or an answer that is not as long as was ordered."""
    result = []
    for one in receipts:
        ordered = selection.conversations[one.conversation].requests[one.turn].answer_tokens
        error = one.error
        if not error and one.tokens != ordered:
            error = "not the ordered number of tokens"
        elif not error and not one.event_times_s:
            error = "no text"
        result.append((one, error))
    return result


def figures(receipts: Sequence[Receipt], selection: Selection, promise: Promise) -> dict[str, Any]:
    """The figures of a run, ready for JSON. Requests that failed count for the promise, and for no time."""
    results = checked(receipts, selection)
    good = [one for one, error in results if not error]
    ordered = sum(len(one.requests) for one in selection.conversations)
    times = [request_times(one) for one in good]
    gaps_s = [after - before for one in good for before, after in pairwise(one.event_times_s)]
    end_s = max((one.end_s for one in receipts), default=0.0)
    took_s = end_s - min((one.due_s for one in receipts), default=0.0)
    kept = sum(one.keeps(promise) for one in times) / ordered
    return {
        "requests": ordered,
        "completed": len(good),
        "errors": dict(Counter(error for _, error in results if error)),
        "not_sent": ordered - len(results),
        "took_s": round(took_s, 3),
        "requests_per_s": round(len(good) / took_s, 4) if took_s else 0.0,
        "tokens_per_s": round(sum(one.tokens for one in good) / took_s, 2) if took_s else 0.0,
        "prompt_tokens": sum(one.prompt_tokens for one in good),
        "cached_prompt_tokens": sum(one.cached_tokens for one in good),
        "answer_tokens": sum(one.tokens for one in good),
        "first_token_s": _quantiles([one.first_s for one in times]),
        "token_s": _quantiles([one.token_s for one in times if one.token_s is not None]),
        "event_gap_p99_s": _quantiles(gaps_s).get("p99"),
        "sent_late_most_s": round(max((one.sent_s - one.due_s for one in receipts), default=0.0), 4),
        "promise": {**asdict(promise), "kept_share": round(kept, 4), "kept": kept >= promise.share},
    }


def request_times(one: Receipt) -> RequestTimes:
    """The times of a complete answer."""
    first_s, last_s = one.event_times_s[0], one.event_times_s[-1]
    return RequestTimes(first_s - one.due_s, (last_s - first_s) / (one.tokens - 1) if one.tokens > 1 else None)


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{percent}": round(float(np.percentile(seconds, percent)), 5) for percent in (50, 95, 99)}
