"""`redoubt bench loads WHAT`: the service under loads that have names, through HTTP.

    redoubt bench loads first-token --model embedded --threads 2 --out X.json

- first-token: the time of the first token over prompt length and users who ask at the same time.
- concurrency: 1 to 1,000 requests at the same time, with one worker and with two that share its threads; and how long
  requests waited in the workers' queues.
- start: the first ten requests after a start, one after another.
- lengths: 32 and 1,024 tokens in, 32 out, beside llama.cpp's own server.

Prompts are random tokens (of a start: texts), other ones each time, so that no cache knows them; answers are greedy, as
long as ordered, and without guesses, because random tokens' continuations repeat themselves. Services take turns.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.common import ROOT, OneLineParser, at_least, exit_on_end_signals, machine, number_list, print_result
from bench.conversations.client import Receipt
from bench.conversations.command import vocab_size_of
from bench.conversations.figures import checked, quantiles
from bench.conversations.fleet import Fleet, Target
from bench.conversations.launches import OURS, OwnSettings, own_launches, peer_launch
from bench.conversations.load import Load
from bench.conversations.plan import FIRST_MAPPED_ID, PlannedConversation, Selection, TurnRequest
from bench.conversations.rounds import LEAST_ROUNDS, extremes
from bench.conversations.server import Launch, Server, ServerError, get_json
from bench.cores import default_threads
from bench.kv_memory import kv_memory_bytes
from bench.models import NAMES, bench_model
from bench.peers import InstallError
from bench.peers.http_server import Sizes
from bench.places import reasons_without_places, shown_command
from bench.processor import machine_facts, this_processor
from quant.errors import QuantError

PEER: Final = "llama_cpp"
PROMPTS: Final = (32, 128, 512, 1024, 2032)
"""The longest leaves room for an answer in a context of 2,048."""
USERS: Final = (1, 2, 4, 8, 16)
MANY: Final = (1, 10, 100, 300, 1000)
PLACES: Final = 64
"""Requests that a worker computes at the same time in the load of many users."""
LENGTHS: Final = ((32, 32), (1024, 32))
REQUESTS_AFTER_START: Final = 10
RUN_S: Final = 300.0
REPORT_S: Final = 2.5
"""By when a worker's report of what it has done has come: they are a second apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The options."""

    what: str
    model: str
    threads: int
    rounds: int
    prompts: tuple[int, ...]
    users: tuple[int, ...]
    models: Path
    environments: Path
    folder: Path
    """For configurations."""


class Sender:
    """Sends random requests, never the same."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rng = random.Random(7)
        self._sent = 0

    def at_once(self, target: Target, users: int, prompt_tokens: int, new_tokens: int) -> list[Receipt]:
        """So many requests at the same time. Raises RuntimeError if one fails."""
        ids = range(FIRST_MAPPED_ID, self._vocab_size)
        prompts = [tuple(self._rng.choices(ids, k=prompt_tokens)) for _ in range(users)]
        return self._send(target, [TurnRequest((), ids, len(ids), new_tokens) for ids in prompts], users)

    def texts(self, target: Target, count: int, new_tokens: int) -> list[Receipt]:
        """So many chat requests, one after another. Raises RuntimeError if one fails."""
        requests = []
        for _ in range(count):
            self._sent += 1
            asked = f"Number {self._sent}: what can be said of {self._rng.randrange(10**9)}? " + "Say why. " * 24
            requests.append(TurnRequest((("user", asked),), (), 128, new_tokens))
        return self._send(target, requests, 1)

    def _send(self, target: Target, requests: Sequence[TurnRequest], at_once: int) -> list[Receipt]:
        some = Selection(tuple(PlannedConversation("", (one,)) for one in requests), 0, 0)
        receipts = Load(at_once=at_once, seed=0, run_s=RUN_S).send(target.url, target.models, some)
        errors = {error for _, error in checked(receipts, some) if error}
        if errors:
            raise RuntimeError(f"requests fail: {', '.join(sorted(errors))}")
        return receipts


def first_s(receipts: Sequence[Receipt]) -> list[float]:
    """The time of each request's first token."""
    return [one.event_times_s[0] - one.due_s for one in receipts]


def response_s(receipts: Sequence[Receipt]) -> list[float]:
    """The time of each whole answer."""
    return [one.end_s - one.due_s for one in receipts]


def next_s(receipts: Sequence[Receipt]) -> list[float]:
    """Each request's time per token after the first."""
    return [(one.event_times_s[-1] - one.event_times_s[0]) / (one.tokens - 1) for one in receipts]


def measure_first_token(fleet: Fleet, sender: Sender, setting: Setting) -> list[dict[str, Any]]:
    """Median and slowest first token of those who ask at the same time, by prompt length and users."""
    cells = [(prompt, users) for prompt in setting.prompts for users in setting.users]
    found: dict[tuple[int, int], list[list[float]]] = {cell: [] for cell in cells}
    with fleet.turn(OURS) as server:
        if server is None:
            return []
        for number in range(setting.rounds):
            for prompt, users in cells:
                found[prompt, users].append(first_s(sender.at_once(server, users, prompt, 2)))
                told = statistics.median(found[prompt, users][-1])
                tell(f"round {number + 1}, prompt of {prompt}, {users} at once: first token {told:.3f} s")
    return [
        {
            "prompt_tokens": prompt,
            "users": users,
            "first_token_s": extremes([statistics.median(times) for times in rounds], 4),
            "slowest_first_token_s": extremes([max(times) for times in rounds], 4),
        }
        for (prompt, users), rounds in found.items()
    ]


def measure_concurrency(fleet: Fleet, sender: Sender, setting: Setting) -> list[dict[str, Any]]:
    """Rates, first tokens and time in the queue, by workers and requests at the same time."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for number in range(setting.rounds):
        for name in fleet.order(number):
            with fleet.turn(name) as server:
                if server is None:
                    continue
                for users in setting.users:
                    one = crowd(server, sender, users, setting.prompts[0])
                    found.setdefault((name, users), []).append(one)
                    tell(f"round {number + 1}, {name}, {users} at once: {one['requests_per_s']:.2f} requests/s")
    return [
        {
            "server": name,
            "workers": 2 if name != OURS else 1,
            "users": users,
            "computed_at_once": min(users, PLACES * (2 if name != OURS else 1)),
            **{figure: extremes([one[figure] for one in rounds], 4) for figure in rounds[0]},
        }
        for (name, users), rounds in found.items()
    ]


def crowd(server: Server, sender: Sender, users: int, prompt_tokens: int, new_tokens: int = 16) -> dict[str, float]:
    """The figures of so many requests at once. Raises RuntimeError."""
    before = queue_of(server)
    receipts = sender.at_once(server, users, prompt_tokens, new_tokens)
    time.sleep(REPORT_S)
    after = queue_of(server)
    took_s = max(one.end_s for one in receipts) - min(one.due_s for one in receipts)
    times = quantiles(first_s(receipts))
    return {
        "requests_per_s": users / took_s,
        "tokens_per_s": users * new_tokens / took_s,
        "first_token_p50_s": times["p50"],
        "first_token_p99_s": times["p99"],
        "first_token_mean_s": statistics.fmean(first_s(receipts)),
        "next_token_p50_s": quantiles(next_s(receipts))["p50"],
        "queue_mean_s": (after[1] - before[1]) / max(1, after[0] - before[0]),
    }


def queue_of(server: Server) -> tuple[int, float]:
    """How many requests the workers have begun, and how long those waited in their queues, all together."""
    rows = (get_json(server.url, "/v1/workers") or {}).get("data", [])
    return sum(row["admitted"] for row in rows), sum(row["queued_s"] for row in rows)


def measure_start(fleet: Fleet, sender: Sender, setting: Setting) -> list[dict[str, Any]]:
    """The requests after a start, by their number; a start for each round."""
    rounds: list[list[Receipt]] = []
    for number in range(setting.rounds):
        with fleet.turn(OURS) as server:
            if server is None:
                return []
            rounds.append(sender.texts(server, REQUESTS_AFTER_START, 32))
            tell(f"start {number + 1}: first tokens {', '.join(f'{1000 * one:.0f}' for one in first_s(rounds[-1]))} ms")
            server.end()
    figures = {"first_token_s": first_s, "response_s": response_s}
    rows: list[dict[str, Any]] = [
        {"request": number + 1}
        | {name: extremes([take(one)[number] for one in rounds], 4) for name, take in figures.items()}
        for number in range(REQUESTS_AFTER_START)
    ]
    first_over_last = {
        name: extremes([take(one)[0] / take(one)[-1] for one in rounds]) for name, take in figures.items()
    }
    return [*rows, {"request": "first over tenth", **first_over_last}]


def measure_lengths(fleet: Fleet, sender: Sender, setting: Setting) -> list[dict[str, Any]]:
    """Response time, first and next token of single requests and of several, ours and llama.cpp's."""
    figures: dict[str, Callable[[Sequence[Receipt]], list[float]]] = {
        "response_s": response_s, "first_token_s": first_s, "next_token_s": next_s,
    }  # fmt: skip
    cells = [(prompt, new, users) for prompt, new in LENGTHS for users in setting.users]
    found: dict[tuple[int, int, int], dict[str, list[dict[str, float]]]] = {cell: {} for cell in cells}
    for number in range(setting.rounds):
        for name in fleet.order(number):
            with fleet.turn(name) as server:
                if server is None:
                    continue
                for prompt, new, users in cells:
                    times = [sender.at_once(server, users, prompt, new) for _ in range(3 if users == 1 else 1)]
                    receipts = [one for some in times for one in some]
                    one = {figure: statistics.median(take(receipts)) for figure, take in figures.items()}
                    found[prompt, new, users].setdefault(name, []).append(one)
                    told = f"{prompt} in, {new} out, {users} at once: {one['response_s']:.3f} s"
                    tell(f"round {number + 1}, {name}, {told}")
    return [
        {
            "prompt_tokens": prompt,
            "new_tokens": new,
            "users": users,
            **{name: {f: extremes([one[f] for one in rounds], 5) for f in figures} for name, rounds in servers.items()},
            **({"its_over_ours": _ratios(servers, tuple(figures))} if {OURS, PEER} <= set(servers) else {}),
        }
        for (prompt, new, users), servers in found.items()
    ]


def _ratios(servers: dict[str, list[dict[str, float]]], figures: Sequence[str]) -> dict[str, dict[str, float]]:
    pairs = list(zip(servers[OURS], servers[PEER], strict=False))
    return {figure: extremes([its[figure] / ours[figure] for ours, its in pairs]) for figure in figures}


@dataclass(frozen=True, slots=True)
class What:
    """One load: how it is measured, and its defaults."""

    measure: Callable[[Fleet, Sender, Setting], list[dict[str, Any]]]
    prompts: tuple[int, ...]
    users: tuple[int, ...]


LOADS: Final = {
    "first-token": What(measure_first_token, PROMPTS, USERS),
    "concurrency": What(measure_concurrency, (32,), MANY),
    "start": What(measure_start, (128,), (1,)),
    "lengths": What(measure_lengths, tuple(prompt for prompt, _ in LENGTHS), (1, 8)),
}


def make_fleet(setting: Setting) -> tuple[Fleet, Sender]:
    """The services of a load. Raises InstallError, QuantError, OSError, ImportError."""
    model = bench_model(setting.model, setting.models, setting.environments / "models")
    packed = model.make_packed()
    sender = Sender(vocab_size_of(packed))
    many = setting.what == "concurrency"
    slots = PLACES if many else max(setting.users)
    context_tokens = max(setting.prompts) + (16 if max(setting.prompts) > 1024 else 256)

    def sizes(workers: int) -> Sizes:
        kv_bytes = kv_memory_bytes(packed, workers * slots, context_tokens)
        return Sizes(threads=setting.threads, slots=workers * slots, context_tokens=context_tokens, kv_bytes=kv_bytes)

    own = OwnSettings(guesses=False)
    launches: list[Launch] = own_launches([packed], own, (), sizes(1), setting.folder, setting.environments)
    if many:
        launches += own_launches(
            [packed], OwnSettings(guesses=False, workers=2), (), sizes(2), setting.folder, setting.environments,
            name=f"{OURS}_2_workers",
        )  # fmt: skip
    if setting.what == "lengths":
        launches.append(peer_launch(PEER, model, sizes(1), setting.environments))

    def warm(target: Target) -> None:
        if setting.what != "start":
            sender.at_once(target, 2, setting.prompts[0], 8)

    return Fleet(launches, warm, together=len(launches) == 1 and setting.what != "start"), sender


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="redoubt bench loads", description="The service under loads that have names.")
    add = parser.add_argument
    add("what", choices=tuple(LOADS))
    add("--model", choices=NAMES, required=True, help="all but embedded have random weights")
    add("--threads", type=at_least(1), default=default_threads(), help="compute threads (default %(default)s)")
    add("--rounds", type=at_least(1), default=LEAST_ROUNDS, help="or starts; medians count (default %(default)s)")
    add("--prompts", type=number_list, help="tokens of the prompts of first-token")
    add("--users", type=number_list, help="requests at the same time")
    add("--out", type=Path, help="a file for the result as JSON")
    add("--models", type=Path, default=ROOT / "models", help="(default: the repository's)")
    add("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    options = parser.parse_args(arguments)
    if options.prompts and options.what != "first-token":
        parser.error(f"--prompts is of first-token; those of {options.what} are fixed")
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    return options


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The result, ready for JSON. Raises ServerError if our service does not start, and what the rest raises."""
    what = LOADS[options.what]
    environments = options.environments.absolute()
    environments.mkdir(parents=True, exist_ok=True)
    setting = Setting(
        what=options.what, model=options.model, threads=options.threads, rounds=options.rounds,
        prompts=options.prompts or what.prompts, users=options.users or what.users, models=options.models.absolute(),
        environments=environments, folder=folder,
    )  # fmt: skip
    fleet, sender = make_fleet(setting)
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    with fleet.running():
        rows = what.measure(fleet, sender, setting)
        about = fleet.about()
    if OURS in fleet.missing:
        raise ServerError(fleet.missing[OURS])
    return {
        "model": options.model,
        **machine(),
        "machine": machine_facts(this_processor()),
        "threads": options.threads,
        "measured_at": began_at,
        "command": shown_command(["redoubt", "bench", "loads", *options.arguments]),
        "load": options.what,
        "rounds": options.rounds,
        "servers": about,
        "missing": reasons_without_places(fleet.missing),
        "rows": rows,
    }


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    exit_on_end_signals()
    errors = (ServerError, InstallError, QuantError, RuntimeError, ImportError, OSError)
    with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder:
        return print_result(lambda: measured(options, Path(folder)), errors, indent=2, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
