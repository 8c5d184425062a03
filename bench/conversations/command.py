"""`redoubt bench conversations`: requests a second on real conversations, ours beside the peers' HTTP servers.

    redoubt bench conversations --model embedded --data FILE --threads 2 --at-once 16 --out X.json
    redoubt bench conversations MODEL --data FILE --threads 2 --find-rate
    redoubt bench conversations --url https://chat.example.com --data FILE --rate 2

Conversations of the data are sent as users would: streamed, arriving at random or from `--at-once` clients in a closed
loop, each with its own prompt and as many tokens of answer as the data's. Every server gets the same requests at the
same times, other ones in each round. A model with random weights gets token ids of the same lengths. Without a URL all
servers are started here, and take turns. The JSON is written after every round.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.common import ROOT, OneLineParser, at_least, machine
from bench.conversations.data import Conversations, DataError, read_conversations
from bench.conversations.figures import Promise
from bench.conversations.find_rate import MOST_PROBES
from bench.conversations.fleet import Fleet, RunningService, fit_together
from bench.conversations.launches import OURS, PEERS, VARIANTS, OwnSettings, own_launches, peer_launch
from bench.conversations.plan import Bounds, Tokenize, select
from bench.conversations.rounds import LEAST_PROBE, WARM_UP, Plan, medians, play, ratios, run_once, search, warm_up
from bench.conversations.server import Launch, ServerError
from bench.conversations.table import table
from bench.models import EMBEDDED_NAME, NAMES, BenchModel, bench_model
from bench.peers import InstallError
from bench.peers.http_server import Sizes
from kernels import _native
from quant.errors import QuantError

_SAMPLE = "The quick brown fox jumps over the lazy dog, and nobody minds."
SLACK_TOKENS = 64
"""Of a request's context, for what a chat template adds."""


def tokenizer_of(folder: Path) -> Tokenize:
    """What counts tokens. Raises DataError if the folder has no tokenizer."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise DataError(f"{path} is not there; `make model` fetches the embedded model, whose tokenizer counts tokens")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def has_words(folder: Path) -> bool:
    """Whether a model's tokenizer has words; one of random weights has bytes only."""
    return len(tokenizer_of(folder)(_SAMPLE)) < len(_SAMPLE) // 2


def vocab_size_of(folder: Path) -> int:
    """Of a packed model."""
    return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def wanted_conversations(options: argparse.Namespace) -> int:
    """How many different ones a run uses."""
    if options.find_rate:
        return 1 << 30  # as many as there are: how many its probes need is not known before
    return WARM_UP + int(options.conversations) * int(options.rounds)


def make_plan(options: argparse.Namespace, data: Conversations, packed: Path | None) -> Plan:
    """What is sent. packed: our form of the model; None for a service at a URL.

    Raises DataError if there are too few conversations.
    """
    words = packed is None or has_words(packed)
    counting = packed if packed is not None and words else options.models / EMBEDDED_NAME
    bounds = Bounds(options.turns, options.max_prompt_tokens, options.max_answer_tokens)
    vocab_size = None if words or packed is None else vocab_size_of(packed)
    wanted = wanted_conversations(options)
    selection = select(data.usable, wanted, bounds, tokenizer_of(counting), vocab_size=vocab_size, seed=options.seed)
    there = len(selection.conversations)
    needed = WARM_UP + options.conversations + LEAST_PROBE if options.find_rate else wanted
    if there < needed:
        raise DataError(
            f"{options.data} has {there} conversations within the bounds, and {needed} are needed, different ones for "
            "each round; ask for fewer --conversations or --rounds"
        )
    return Plan(
        selection=selection,
        conversations=options.conversations,
        rounds=options.rounds,
        at_once=options.at_once or options.slots,
        rate=options.rate,
        promise=Promise(options.first_token_s, options.token_s),
        run_s=options.run_s,
        probe_s=options.probe_s,
        seed=options.seed,
    )


def first_result(options: argparse.Namespace, plan: Plan, data: Conversations, model: str) -> dict[str, Any]:
    """What a result says of what is measured."""
    return {
        "model": model,
        **machine(),
        "command": shlex.join(["redoubt", "bench", "conversations", *options.arguments]),
        "threads": options.threads,
        "data": {
            "file": options.data.name,
            "conversations_in_file": len(data.usable),
            "unanswered_in_file": data.unanswered,
            "sent_as": "token ids" if plan.selection.conversations[0].requests[0].token_ids else "messages",
            **plan.selection.about(),
        },
        "load": {
            "conversations": plan.conversations,
            "turns": options.turns,
            "rounds": plan.rounds,
            "at_once": None if plan.rate else plan.at_once,
            "rate": plan.rate,
            "seed": plan.seed,
            "max_prompt_tokens": options.max_prompt_tokens,
            "max_answer_tokens": options.max_answer_tokens,
        },
        "promise": {"first_token_s": plan.promise.first_token_s, "token_s": plan.promise.token_s, "share": 0.95},
        "servers": {},
        "missing": {},
        "rounds": {},
        "medians": {},
        "ratios": {},
        "found_rates": {},
    }


def measure_running(options: argparse.Namespace, data: Conversations) -> dict[str, Any]:
    """Measures the service at the URL. Raises DataError, ServerError, RuntimeError."""
    service = RunningService(options.url)
    plan = make_plan(options, data, options.model_folder)
    result = first_result(options, plan, data, service.model) | {"servers": {service.name: service.about()}}
    warm_up(plan)(service)
    if options.find_rate:
        result["found_rates"] = {service.name: search(service, plan)}
        return result
    for number in range(plan.rounds):
        _put_rounds(result, {service.name: [*result["rounds"].get(service.name, []), run_once(service, plan, number)]})
        write(result, options.out)
    return result


def measure_fleet(options: argparse.Namespace, data: Conversations, folder: Path) -> dict[str, Any]:
    """Starts the servers and measures them. Raises DataError, ServerError, RuntimeError, OSError, QuantError."""
    model = (
        None if options.model is None else bench_model(options.model, options.models, options.environments / "models")
    )
    packed: Path = options.model_folder if model is None else model.make_packed()
    plan = make_plan(options, data, packed)
    result = first_result(options, plan, data, packed.name if model is None else model.name)
    launches, missing = all_launches(options, model, packed, plan, folder)
    together = not options.variants and fit_together(launches)
    fleet = Fleet(launches, warm_up(plan), together=together)
    fleet.missing |= missing
    result["together"] = together

    def done(rounds: dict[str, list[dict[str, Any]]]) -> None:
        result["servers"], result["missing"] = fleet.about(), fleet.missing
        _put_rounds(result, rounds)
        write(result, options.out)

    with fleet.running():
        if options.find_rate:
            for name in list(fleet.names):
                with fleet.turn(name) as server:
                    if server is not None:
                        result["found_rates"][name] = search(server, plan)
                done({})
        else:
            play(fleet, plan, done)
    done(result["rounds"])
    if OURS in fleet.missing:
        raise ServerError(f"our service did not start: {fleet.missing[OURS]}")
    return result


def all_launches(
    options: argparse.Namespace, model: BenchModel | None, packed: Path, plan: Plan, folder: Path
) -> tuple[list[Launch], dict[str, str]]:
    """The servers to start, and those that can't be, with the reason."""
    sizes = Sizes(
        threads=options.threads, slots=options.slots, context_tokens=plan.selection.context_tokens + SLACK_TOKENS
    )
    own = OwnSettings(
        workers=options.workers,
        # What random weights write repeats itself, so that guesses would dominate the result.
        guesses=not options.no_guesses and not plan.selection.conversations[0].requests[0].token_ids,
        prefix_cache=not options.no_prefix_cache,
        kv_type=options.kv_type,
    )
    launches: list[Launch] = []
    missing: dict[str, str] = {}
    variants = options.variants
    if not own.guesses and "no_guesses" in variants:
        missing[f"{OURS}_no_guesses"] = f"{OURS} itself has no guesses in this run"
        variants = tuple(name for name in variants if name != "no_guesses")
    if OURS in options.servers:
        launches += own_launches(packed, own, variants, sizes, folder, options.environments)
    for name in options.servers:
        if name != OURS and model is not None:
            try:
                launches.append(peer_launch(name, model, sizes, options.environments))
            except (InstallError, OSError, ImportError, QuantError) as error:
                missing[name] = str(error)
    return launches, missing


def _put_rounds(result: dict[str, Any], rounds: dict[str, list[dict[str, Any]]]) -> None:
    result["rounds"] = rounds
    result["medians"] = {name: medians(some) for name, some in rounds.items()}
    result["ratios"] = ratios(rounds)


def write(result: dict[str, Any], out: Path | None) -> None:
    """The JSON."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def names_of(known: Sequence[str]) -> Any:
    """Different ones of these names with commas, for argparse."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name for name in text.split(",") if name))
        if not names or not set(names) <= set(known):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(known)}")
        return names

    return parse


def positive(text: str) -> float:
    """A number above 0, for argparse."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return float(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = OneLineParser(
        prog="redoubt bench conversations", description="Requests a second on real conversations, beside the peers."
    )
    add = made.add_argument
    add("model_folder", type=Path, nargs="?", metavar="MODEL", help="folder of a converted model: ours alone")
    add("--model", choices=NAMES, help="a model that peers have too; all but embedded have random weights")
    add("--url", help="a service that runs; the API key is REDOUBT_API_KEY. MODEL is then where its tokenizer is")
    add("--data", type=Path, required=True, help="conversations: ShareGPT's JSON, or OpenAI messages as JSON lines")
    servers = (OURS, *PEERS)
    add("--servers", type=names_of(servers), help=f"with commas (default with --model: {','.join(servers)})")
    arrivals = made.add_mutually_exclusive_group()
    arrivals.add_argument("--at-once", type=at_least(1), help="clients in a closed loop (default 16)")
    arrivals.add_argument("--rate", type=positive, help="conversations that arrive in a second, at random")
    arrivals.add_argument("--find-rate", action="store_true", help="the highest rate that keeps the promise")
    add("--conversations", type=at_least(1), default=48, help="of a round (default %(default)s)")
    add("--turns", type=at_least(1), default=1, help="of each conversation at most (default %(default)s)")
    add("--rounds", type=at_least(1), default=3, help="medians count (default %(default)s)")
    add("--max-prompt-tokens", type=at_least(1), default=1024, help="longer prompts are left out (default %(default)s)")
    add("--max-answer-tokens", type=at_least(2), default=256, help="longer answers are cut (default %(default)s)")
    add("--first-token-s", type=positive, default=3.0, help="the promise (default %(default)s)")
    add("--token-s", type=positive, default=0.2, help="the promise, for each token (default %(default)s)")
    add(
        "--probe-s",
        type=positive,
        default=60.0,
        help=f"of arrivals at each of {MOST_PROBES} rates (default %(default)s)",
    )
    add("--run-s", type=positive, default=1800.0, help="the most that a round takes (default %(default)s)")
    add("--seed", type=int, default=7, help="of the choice and the arrivals (default %(default)s)")
    add("--slots", type=at_least(1), help="requests that a server computes at once (default: as --at-once, or 16)")
    add("--workers", type=at_least(1), default=1, help="ours (default %(default)s)")
    add("--threads", type=at_least(1), help="compute threads of every server (default: the cores)")
    add("--no-guesses", action="store_true", help="ours without speculation")
    add("--no-prefix-cache", action="store_true", help="ours without it")
    add("--kv-type", choices=("auto", *_native.KV_TYPES), default="auto", help="ours")
    add("--variants", type=names_of(tuple(VARIANTS)), default=(), help=f"ours also with: {','.join(VARIANTS)}")
    add("--out", type=Path, help="a file for the result as JSON")
    add("--models", type=Path, default=ROOT / "models", help="(default: the repository's)")
    add("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    return made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with one line about what is wrong."""
    made = parser()
    options = made.parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    if (options.url is None) == (options.model is None and options.model_folder is None):
        made.error("needs --model, MODEL or --url (with --url, MODEL is where the tokenizer is)")
    if options.model is not None and options.model_folder is not None:
        made.error("either MODEL or --model")
    if options.model_folder is not None and not (options.model_folder / "tokenizer.json").exists():
        made.error(f"{options.model_folder} is no folder of a converted model")
    if options.model is None and options.servers not in (None, (OURS,)):
        made.error("--servers needs --model: peers read other forms of a model than a converted folder")
    if options.url is not None and (options.servers or options.variants):
        made.error("--url measures that service alone, without --servers and --variants")
    if options.variants and OURS not in (options.servers or (OURS,)):
        made.error(f"--variants are of {OURS}, which is not among --servers")
    options.servers = options.servers or ((OURS, *PEERS) if options.model else (OURS,))
    options.slots = options.slots or options.at_once or 16
    options.at_once = options.at_once or 16
    options.threads = options.threads or len(os.sched_getaffinity(0))
    options.environments = options.environments.absolute()
    if options.model_folder is not None:
        options.model_folder = options.model_folder.absolute()
    options.environments.mkdir(parents=True, exist_ok=True)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 if a server is missing from the result."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    try:
        data = read_conversations(options.data)
        if options.url is not None:
            result = measure_running(options, data)
        else:
            with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder:
                result = measure_fleet(options, data, Path(folder))
        write(result, options.out)
    except (DataError, ServerError, RuntimeError, OSError, QuantError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    print(table(result))
    return 1 if result["missing"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
