"""`redoubt bench scale`: one service over many workers, simulated with the router's own code.

    redoubt bench scale --workers 30 --out scale.json            # all cases: a minute or two
    redoubt bench scale --workers 10,100 --case middle --case overload
    redoubt bench scale --routing                                # what a choice costs among 1 to 1,000 workers
    redoubt bench scale --ingress MODEL                          # what a request and a token cost the ingress
    redoubt bench scale --accounts                               # how many requests a second the accounts admit

Simulates LOTTERY and SHORTEST_QUEUE, and beside them the better of two random workers (TWO_CHOICES) and the shortest
queue by counts that are never stale (FRESH_COUNTS). Around one middle case (16 routers, 80 % load, reports each second,
equal speeds) each of routers, load, report period and speeds is changed by itself. Each scenario is simulated with
several seeds; every figure is [median, least, most] of these.

- `token_s`: from a request's arrival to its end, for each output token; `wait_s`: until it runs; seconds.
- `refused_although_room`: refused while some worker had a place.
- `imbalance`: the largest queue_length / speed over the mean, once a second.
- `asked_per_request`: probes of workers that are full by what is known; `rejected_per_request`: sent in vain.

The simulation starts no service, no Ray and no engine. `--routing` times the real router over objects in place of
replicas. `--ingress` starts the service with one worker, and takes a minute.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm  # type: ignore[import-untyped]

from bench.common import OneLineParser, at_least, machine, number_list, print_result
from bench.scale.routers import POLICIES
from bench.scale.simulation import Scenario, Simulation
from bench.scale.workload import Lengths

_ROUTERS: Final = (1, 4, 64)
_LOAD: Final = 0.5
_PERIODS_S: Final = (5.0,)
_SPEEDS: Final = ("two", "wide")
_USERS: Final = 10_000
_OVERLOAD: Final = 1.5
_WORKER_SECONDS: Final = 3000.0
_LEAST_S: Final = 30.0
_MOST_WORKERS: Final = 5_000


CASES: Final = ("middle", "routers", "load", "period", "speeds", "overload", "homes")


def scenarios(
    workers: int,
    policy: str,
    cases: Sequence[str] = CASES,
    *,
    seed: int = 1,
    warm_up_s: float = 200.0,
    measured_s: float | None = None,
) -> Iterator[Scenario]:
    """The middle case and what differs from it in one thing; users with homes, and a worker that dies.

    measured_s: None: more for few workers, so that there are as many requests, but 30 seconds at least.
    """
    if measured_s is None:
        measured_s = max(_LEAST_S, _WORKER_SECONDS / workers)
    middle = Scenario(policy=policy, workers=workers, routers=16, seed=seed, warm_up_s=warm_up_s, measured_s=measured_s)
    users = replace(middle, users=_USERS)
    # Small queues, so that they fill in a minute.
    overload = replace(middle, load=_OVERLOAD, slots=8, waiting_places=16)
    of_cases: dict[str, list[Scenario]] = {
        "middle": [middle],
        "routers": [replace(middle, routers=routers) for routers in _ROUTERS],
        "load": [replace(middle, load=_LOAD)],
        "period": [replace(middle, report_period_s=period_s) for period_s in _PERIODS_S],
        "speeds": [replace(middle, speeds=speeds) for speeds in _SPEEDS],
        "overload": [overload],
        "homes": [users, *([replace(users, lose_at_s=middle.warm_up_s + measured_s / 2)] if workers > 1 else [])],
    }
    for case in cases:
        if case != "homes" or policy in ("LOTTERY", "SHORTEST_QUEUE"):
            yield from of_cases[case]


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    """Simulates all scenarios; the result is ready for JSON. Raises OSError, ValueError."""
    lengths = Lengths.built_in() if options.data is None else Lengths.of_file(options.data)
    policies = options.policy or POLICIES
    cases = options.case or CASES
    todo = [
        scenario
        for workers in options.workers
        for policy in policies
        for scenario in scenarios(
            workers, policy, cases, seed=options.seed, warm_up_s=options.warm_up, measured_s=options.seconds
        )
    ]
    rows = []
    for scenario in tqdm(todo, file=sys.stderr, unit="scenario", leave=False):
        start_s = time.process_time()
        runs = [
            Simulation(replace(scenario, seed=scenario.seed + number), lengths).run() for number in range(options.seeds)
        ]
        took_s = round(time.process_time() - start_s, 1)
        rows.append({"scenario": asdict(scenario), **_over_seeds(runs), "simulated_in_s": took_s})
    lengths_of = options.data.name if options.data else "built in"
    return {**machine(), "lengths": lengths_of, "seeds": options.seeds, "scenarios": rows}


def _over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most of each figure; None where it has none."""
    figures: dict[str, Any] = {}
    for name, value in runs[0].items():
        values = [run[name] for run in runs]
        if isinstance(value, dict):
            figures[name] = _over_seeds(values)
        else:
            known = sorted(one for one in values if one is not None)
            figures[name] = [round(statistics.median(known), 4), known[0], known[-1]] if known else None
    return figures


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the command line asks for."""
    if options.accounts:
        from bench.scale.accounts_cost import accounts_costs

        return {**machine(), "accounts": accounts_costs()}
    if options.ingress is not None:
        from bench.scale.ingress_cost import IngressOptions, ingress_costs

        return ingress_costs(IngressOptions(model=options.ingress, streams=options.streams))
    if options.routing:
        from bench.scale.routing_cost import routing_costs

        return {**machine(), "unit": "ms", "routing": routing_costs(options.workers)}
    return simulate(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one JSON object; returns the exit status."""
    parser = OneLineParser(
        prog="redoubt bench scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=_workers, help="numbers with commas (default 30; with --routing 1,10,100,1000)"
    )
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only this one; may be repeated")
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be repeated")
    parser.add_argument("--data", type=Path, help="conversations whose lengths are taken, as JSON (default: built in)")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=at_least(1), default=5, help="how many (default 5)")
    parser.add_argument("--seconds", type=at_least(1), help="simulated (default: 3000 over the workers, 30 at least)")
    parser.add_argument("--warm-up", type=at_least(1), default=200, help="seconds simulated before (default 200)")
    parser.add_argument("--routing", action="store_true", help="time the real router instead of simulating")
    parser.add_argument("--accounts", action="store_true", help="time the accounts over a database of their own")
    parser.add_argument("--ingress", type=Path, metavar="MODEL", help="measure an ingress of a service with this model")
    parser.add_argument("--streams", type=at_least(1), default=16, help="of --ingress, at a time (default 16)")
    parser.add_argument("--out", type=Path, help="a file that gets the JSON too")
    options = parser.parse_args(arguments)
    options.workers = options.workers or ((1, 10, 100, 1000) if options.routing else (30,))
    return print_result(lambda: measure(options), (OSError, ValueError, RuntimeError), indent=1, out=options.out)


def _workers(text: str) -> tuple[int, ...]:
    numbers = number_list(text)
    if max(numbers) > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"at most {_MOST_WORKERS} workers, not {max(numbers)}")
    return numbers


if __name__ == "__main__":
    raise SystemExit(main())
