"""Searches for the rate that meets the SLO on one server, in bounded time. `find_rate` chooses the rates.

First one client asks alone: a server that misses the SLO even then meets it at no rate. Then a closed loop says
where to begin. A further search of the same server begins where the one before ended. Starts no server.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from bench.conversations.client import CUT, TIMEOUT
from bench.conversations.figures import figures, without_samples
from bench.conversations.find_rate import CLOSE, FoundRate, find_rate
from bench.conversations.fleet import Target
from bench.conversations.load import Load
from bench.conversations.plan import Selection
from bench.conversations.rounds import Plan, report

LEAST_PROBE: Final = 20
"""Conversations of a probe at least: 5 % of it is one."""
FIRST_SHARE: Final = 0.6
"""A search starts at this share of the closed loop's rate."""
_ALONE_SHARE: Final = 0.1
_CLOSED_SHARE: Final = 0.2
"""Share of the search's time in which the single client, and the closed loop, may begin conversations."""


class Search:
    """The searches on one server."""

    def __init__(self, target: Target, plan: Plan, now_s: Callable[[], float] = time.monotonic) -> None:
        self._target, self._plan, self._now_s = target, plan, now_s
        self._ends_s = 0.0
        self._used = 0
        """Number of conversations used so far."""
        self._loads = 0
        self._alone_rate: float | None = None
        self._found_rate = 0.0

    def run(self) -> dict[str, Any]:
        """One search, ready for JSON; rates are conversations a second. Raises RuntimeError if no request succeeds."""
        self._ends_s = self._now_s() + self._plan.search_s
        if self._alone_rate is not None:
            found = find_rate(self._probe, self._found_rate, kept_rate=self._alone_rate, step=CLOSE)
            return self._json(found)
        alone = self._closed_loop(1, LEAST_PROBE, _ALONE_SHARE, "one at a time")
        result: dict[str, Any] = {"one_at_a_time": without_samples(alone)}
        if not alone["completed"] and set(alone["errors"]) - {TIMEOUT, CUT}:  # it is not only slow
            raise RuntimeError(f"no request succeeds: {alone['errors']}")
        if not alone["promise"]["kept"]:
            not_reached = "one client alone breaks the promise already"
            return result | self._json(FoundRate(0.0, None, (), not_reached))
        closed = self._closed_loop(self._plan.at_once, self._plan.conversations, _CLOSED_SHARE, "closed loop")
        result["closed_loop"] = without_samples(closed)
        first = _conversations_per_s(closed) * FIRST_SHARE
        self._alone_rate = _conversations_per_s(alone)
        return result | self._json(find_rate(self._probe, first, kept_rate=self._alone_rate))

    def _left_s(self) -> float:
        return self._ends_s - self._now_s()

    def _closed_loop(self, at_once: int, count: int, share: float, name: str) -> dict[str, Any]:
        """Runs `at_once` clients, until the conversations or this share of the time are used."""
        load = Load(
            at_once=at_once, seed=self._seed(), run_s=max(1.0, self._left_s()), request_s=self._plan.request_s,
            begin_within_s=share * self._plan.search_s,
        )  # fmt: skip
        found = self._send(load, self._plan.part(self._used, count))
        self._used += found["conversations"]
        report(f"{self._target.name}, {name}", found)
        return found

    def _probe(self, rate: float) -> dict[str, Any] | None:
        """The figures at a rate; None if there is no time for it."""
        count = max(LEAST_PROBE, round(rate * self._plan.probe_s))
        some = self._plan.part(self._used, count)
        needed_s = count / rate + self._longest_s(some)
        if needed_s > self._left_s():
            return None
        self._used += count
        load = Load(rate=rate, seed=self._seed(), run_s=needed_s, request_s=self._plan.request_s)
        found = self._send(load, some)
        report(f"{self._target.name}, {count} conversations at {rate:.3g} a second", found)
        return found

    def _longest_s(self, some: Selection) -> float:
        """Time of the longest conversation under the SLO."""
        slo = self._plan.promise
        return max(
            sum(slo.first_token_s + slo.token_s * request.answer_tokens for request in one.requests)
            for one in some.conversations
        )

    def _send(self, load: Load, some: Selection) -> dict[str, Any]:
        receipts = load.send(self._target.url, self._target.models, some)
        if load.begin_within_s is not None:  # those that had no time to begin are not part of it
            some = some.part(0, max((one.conversation for one in receipts), default=0) + 1)
        return figures(receipts, some, self._plan.promise) | {"conversations": len(some.conversations)}

    def _seed(self) -> int:
        """Another one for each load, in the same order for every server."""
        self._loads += 1
        return self._plan.seed + self._loads

    def _json(self, found: FoundRate) -> dict[str, Any]:
        self._found_rate = found.rate
        return {
            "conversations_per_s": round(found.rate, 4),
            "broken_at": None if found.broken_rate is None else round(found.broken_rate, 4),
            "not_reached": found.not_reached,
            "conversations_used": self._used,
            "conversations_repeated": self._plan.repeated(self._used),
            "took_s": round(self._plan.search_s - self._left_s(), 1),
            "probes": [
                {"rate": round(one.rate, 4), "kept": one.kept, **without_samples(one.figures)} for one in found.probes
            ],
        }


def _conversations_per_s(found: dict[str, Any]) -> float:
    """The rate of complete conversations, about: of requests, over the requests of a conversation."""
    per_conversation = float(found["requests"]) / float(found["conversations"])
    return float(found["completed"]) / float(found["took_s"]) / per_conversation if found["took_s"] else 0.0
