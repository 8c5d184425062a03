"""Plays the rounds and compares what they gave. Starts no server itself; `search` finds rates."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.conversations.figures import NO_TEXT, Slo, figures
from bench.conversations.fleet import Fleet, Target
from bench.conversations.launches import OURS
from bench.conversations.load import Load
from bench.conversations.plan import Selection

LEAST_ROUNDS: Final = 3
"""Rounds or searches of a result that shall be published."""
WARM_UP: Final = 4
"""Conversations before a server's first run; they are in no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of all rounds."""

    selection: Selection
    """All conversations; the first WARM_UP of them warm servers up."""
    conversations: int
    """Conversations per round."""
    rounds: int
    at_once: int
    rate: float | None
    """Conversations a second that arrive at random; None: `at_once` clients, each with the next one."""
    promise: Slo
    run_s: float
    probe_s: float
    search_s: float
    """The most that the search of one server's rate takes."""
    request_s: float | None = None
    """The most that a request takes; None: as long as its round."""
    seed: int

    def part(self, number: int, count: int) -> Selection:
        """The conversations of a round or probe: different ones each time, for caches know the earlier ones."""
        return self.selection.part(WARM_UP + number, count)

    def repeated(self, used: int) -> int:
        """How many of the first `used` conversations after the warm-up were sent before."""
        return self.selection.repeated(WARM_UP + used)

    def load(self, number: int) -> Load:
        """The load of a round: each has other arrival times, and they are the same for every server."""
        at_once = self.at_once if self.rate is None else None
        return Load(
            at_once=at_once, rate=self.rate, seed=self.seed + number, run_s=self.run_s, request_s=self.request_s
        )


def warm_up(plan: Plan) -> Callable[[Target], None]:
    """Makes the function that warms a server up. It raises RuntimeError if a request fails."""

    def send(target: Target) -> None:
        some = plan.selection.part(0, WARM_UP)
        load = Load(at_once=2, seed=plan.seed, run_s=plan.run_s, request_s=plan.request_s)
        found = figures(load.send(target.url, target.models, some), some, plan.promise)
        if set(found["errors"]) - {NO_TEXT} or not found["completed"]:
            raise RuntimeError(f"requests fail: {found['errors']}")

    return send


def run_once(target: Target, plan: Plan, number: int) -> dict[str, Any]:
    """One round on one server."""
    some = plan.part(number * plan.conversations, plan.conversations)
    return figures(plan.load(number).send(target.url, target.models, some), some, plan.promise, target.models)


def play(fleet: Fleet, plan: Plan, done: Callable[[dict[str, list[dict[str, Any]]]], None]) -> None:
    """Plays all rounds. `done` gets the results so far after each round. A server that fails takes no further part."""
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(plan.rounds):
        for name in fleet.order(number):
            with fleet.turn(name) as server:
                if server is None:
                    continue
                with fleet.share_of_others(name) as cores:
                    try:
                        found = run_once(server, plan, number)
                    except RuntimeError as error:
                        fleet.fails(name, f"round {number + 1}: {error}")
                        continue
                rounds.setdefault(name, []).append(found | {"cores_of_other_servers": cores()})
                report(f"round {number + 1}, {name}", found)
        done(rounds)


def report(what: str, found: Mapping[str, Any]) -> None:
    """Says on the standard error what was measured."""
    first_s, kept = found["first_token_s"].get("p95"), found["promise"]["kept"]
    rates = f"{found['requests_per_s']:.2f} requests/s, {found['tokens_per_s']:.1f} tokens/s"
    failed = f", failed: {found['errors']}" if found["errors"] else ""
    slo = "kept" if kept else "broken"
    print(f"{what}: {rates}, first token p95 {first_s} s, promise {slo}{failed}", file=sys.stderr, flush=True)


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The median rates of the rounds; None where a round has none. Percentiles are of all requests: see `pooled`."""
    return {name: _median([one.get(name) for one in rounds]) for name in ("requests_per_s", "tokens_per_s")}


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


def rates_of_searches(searches: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The rates that each server's searches found, and ours over its: each a median with the extremes.

    A search in which a server kept the promise at no rate has no ratio; `compared` says how many have one, and with a
    single one none is told.
    """
    rates = {name: [float(one["conversations_per_s"]) for one in some] for name, some in searches.items()}
    result: dict[str, dict[str, Any]] = {}
    for name, found in rates.items():
        result[name] = {"conversations_per_s": extremes(found, 3), "searches": list(searches[name])}
        if name != OURS and OURS in rates:
            pairs = [(ours, its) for ours, its in zip(rates[OURS], found, strict=False) if ours and its]
            result[name] |= {"ours_over_its": _spread(pairs) if len(pairs) > 1 else None, "compared": len(pairs)}
    return result


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return round(statistics.median(there), 5) if there and len(there) == len(values) else None


def _spread(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float] | None:
    """The median ratio and the extremes; None if there is a figure missing."""
    if not pairs or not all(above and below for above, below in pairs):
        return None
    return extremes([above / below for above, below in pairs if above and below])


def extremes(found: Sequence[float], digits: int = 2) -> dict[str, float]:
    return {
        "median": round(statistics.median(found), digits),
        "lowest": round(min(found), digits),
        "highest": round(max(found), digits),
    }
