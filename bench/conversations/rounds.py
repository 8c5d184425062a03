"""Plays the rounds, or searches for the rate that keeps the promise, and makes the result. Starts no server itself."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.conversations.figures import Promise, figures
from bench.conversations.find_rate import FoundRate, find_rate
from bench.conversations.fleet import Fleet, Target
from bench.conversations.launches import OURS
from bench.conversations.load import Load
from bench.conversations.plan import Selection

WARM_UP: Final = 4
"""Conversations before a server's first run; they are in no figure."""
LEAST_PROBE: Final = 20
"""Conversations of a probe at least: 5 % of it is one."""
FIRST_SHARE: Final = 0.6
"""Of the rate in a closed loop, where a search begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    selection: Selection
    """All conversations; the first WARM_UP of them warm servers up."""
    conversations: int
    """Of a round."""
    rounds: int
    at_once: int
    rate: float | None
    """Conversations a second that arrive at random; None: `at_once` clients, each with the next one."""
    promise: Promise
    run_s: float
    probe_s: float
    seed: int

    def part(self, number: int, count: int) -> Selection:
        """The conversations of a round or probe: different ones each time, for caches know the earlier ones."""
        return self.selection.part(WARM_UP + number, count)

    def load(self) -> Load:
        """Of a round."""
        if self.rate is None:
            return Load(at_once=self.at_once, seed=self.seed, run_s=self.run_s)
        return Load(rate=self.rate, seed=self.seed, run_s=self.run_s)


def warm_up(plan: Plan) -> Callable[[Target], None]:
    """What is done to each server after it has started. Raises RuntimeError if a request fails."""

    def send(target: Target) -> None:
        some = plan.selection.part(0, WARM_UP)
        load = Load(at_once=2, seed=plan.seed, run_s=plan.run_s)
        found = figures(load.send(target.url, target.model, some), some, plan.promise)
        if found["errors"]:
            raise RuntimeError(f"requests fail: {found['errors']}")

    return send


def run_once(target: Target, plan: Plan, number: int) -> dict[str, Any]:
    """One round on one server."""
    some = plan.part(number * plan.conversations, plan.conversations)
    return figures(plan.load().send(target.url, target.model, some), some, plan.promise)


def play(fleet: Fleet, plan: Plan, done: Callable[[dict[str, list[dict[str, Any]]]], None]) -> None:
    """All rounds. done: gets what was measured so far after each round."""
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(plan.rounds):
        for name in fleet.order(number):
            with fleet.turn(name) as server:
                if server is None:
                    continue
                before_s, began_s = fleet.others_cpu_s(name), time.monotonic()
                found = run_once(server, plan, number)
                others = (fleet.others_cpu_s(name) - before_s) / (time.monotonic() - began_s)
                rounds.setdefault(name, []).append(found | {"cores_of_other_servers": round(others, 3)})
                report(f"round {number + 1}, {name}", found)
        done(rounds)


def search(target: Target, plan: Plan) -> dict[str, Any]:
    """The highest rate of arrivals at which a server keeps the promise, with all probes."""
    first = run_once(target, plan, 0)
    report(f"{target.name}, closed loop", first)
    used = plan.conversations

    def probe(rate: float) -> dict[str, Any]:
        nonlocal used
        count = max(LEAST_PROBE, round(rate * plan.probe_s))
        some = plan.part(used, count)
        used += count
        longest_s = max(request.answer_tokens for one in some.conversations for request in one.requests)
        drain_s = 2 * (plan.promise.first_token_s + plan.promise.token_s * longest_s)
        run_s = count / rate * 1.5 + drain_s
        load = Load(rate=rate, seed=plan.seed, run_s=run_s)
        found = figures(load.send(target.url, target.model, some), some, plan.promise)
        report(f"{target.name}, {count} conversations at {rate:.3g} a second", found)
        return found

    closed = first["completed"] / first["took_s"] / max(1.0, first["requests"] / plan.conversations)
    if not closed:
        raise RuntimeError(f"no request succeeds: {first['errors']}")
    return {"closed_loop": first, **search_json(find_rate(probe, closed * FIRST_SHARE), plan)}


def report(what: str, found: Mapping[str, Any]) -> None:
    """Says on the standard error what was measured."""
    first_s, kept = found["first_token_s"].get("p95"), found["promise"]["kept"]
    rates = f"{found['requests_per_s']:.2f} requests/s, {found['tokens_per_s']:.1f} tokens/s"
    failed = f", failed: {found['errors']}" if found["errors"] else ""
    promise = "kept" if kept else "broken"
    print(f"{what}: {rates}, first token p95 {first_s} s, promise {promise}{failed}", file=sys.stderr, flush=True)


def search_json(found: FoundRate, plan: Plan) -> dict[str, Any]:
    """A search, ready for JSON. Rates are conversations a second."""
    used = plan.conversations + sum(round(one.figures["requests"]) for one in found.probes)
    return {
        "conversations_per_s": round(found.rate, 4),
        "broken_at": None if found.broken_rate is None else round(found.broken_rate, 4),
        "requests_used": used,
        "probes": [{"rate": round(one.rate, 4), "kept": one.kept, **one.figures} for one in found.probes],
    }


MEDIANS: Final[Mapping[str, tuple[str, ...]]] = {
    "requests_per_s": ("requests_per_s",),
    "tokens_per_s": ("tokens_per_s",),
    **{f"first_token_{p}_s": ("first_token_s", p) for p in ("p50", "p95", "p99")},
    **{f"token_{p}_s": ("token_s", p) for p in ("p50", "p95", "p99")},
    "event_gap_p99_s": ("event_gap_p99_s",),
}
"""A round's figures by the name of their median."""


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Of each figure over the rounds; None where a round has none."""
    return {name: _median([_value(one, path) for one in rounds]) for name, path in MEDIANS.items()}


def ratios(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Ours and each other server's figures of the same round: above 1 ours is better."""
    result: dict[str, dict[str, Any]] = {}
    for other in rounds:
        if other == OURS or OURS not in rounds:
            continue
        pairs = list(zip(rounds[OURS], rounds[other], strict=False))
        result[other] = {
            "requests_per_s": _spread([(ours["requests_per_s"], its["requests_per_s"]) for ours, its in pairs]),
            "tokens_per_s": _spread([(ours["tokens_per_s"], its["tokens_per_s"]) for ours, its in pairs]),
            "first_token_p99": _spread(
                [(its["first_token_s"].get("p99"), ours["first_token_s"].get("p99")) for ours, its in pairs]
            ),
            "token_p50": _spread([(its["token_s"].get("p50"), ours["token_s"].get("p50")) for ours, its in pairs]),
        }
    return result


def promise_json(promise: Promise) -> dict[str, float]:
    """A promise, ready for JSON."""
    return asdict(promise)


def _value(one: Mapping[str, Any], path: Sequence[str]) -> float | None:
    found: Any = one
    for key in path:
        found = (found or {}).get(key)
    return None if found is None else float(found)


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return round(statistics.median(there), 5) if there and len(there) == len(values) else None


def _spread(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float] | None:
    """The median ratio and the extremes; None if there is a figure missing."""
    if not pairs or not all(above and below for above, below in pairs):
        return None
    found = [above / below for above, below in pairs if above and below]
    return {
        "median": round(statistics.median(found), 2),
        "lowest": round(min(found), 2),
        "highest": round(max(found), 2),
    }
