"""`redoubt bench conversations`: requests a second on real conversations, ours beside the peers' HTTP servers.

    redoubt bench conversations --model embedded --data FILE --threads 2 --at-once 16 --out X.json
    redoubt bench conversations MODEL --data FILE --threads 2 --find-rate
    redoubt bench conversations MODEL --also MODEL2 --data FILE
    redoubt bench conversations --url https://chat.example.com --data FILE --rate 2

Conversations of the data are sent as users would: streamed, arriving at random or from `--at-once` clients in a closed
loop, each with its own prompt and as many tokens of answer as the data's. Every server gets the same requests at the
same times, other ones in each round. A model with random weights gets token ids of the same lengths. Without a URL all
servers are started here, and take turns. One that fails is in the result with its reason, and the others go on. The
JSON is written after every round, without folders and names of this machine.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from app.draft_check import check_draft
from bench.common import check_writable, exit_on_end_signals, json_text, machine
from bench.conversations.data import Conversations, DataError, read_conversations
from bench.conversations.figures import Slo, pooled, without_samples
from bench.conversations.fleet import Fleet, RunningService, fit_together
from bench.conversations.launches import OURS, OwnSettings, own_launches, peer_launch
from bench.conversations.options import parse
from bench.conversations.plan import FIRST_MAPPED_ID, Bounds, Tokenize, select
from bench.conversations.rounds import (
    LEAST_ROUNDS,
    WARM_UP,
    Plan,
    medians,
    play,
    rates_of_searches,
    ratios,
    run_once,
    warm_up,
)
from bench.conversations.search import LEAST_PROBE, Search
from bench.conversations.server import Launch, ServerError
from bench.conversations.table import table
from bench.kv_memory import kv_memory_bytes
from bench.models import EMBEDDED_NAME, BenchModel, bench_model
from bench.peers import InstallError
from bench.peers.http_server import Sizes
from bench.places import reasons_without_places, shown_command, without_places
from bench.processor import machine_facts, this_processor
from kernels import _native
from quant.errors import QuantError
from quant.files.json_file import read_json_object

_SAMPLE = "The quick brown fox jumps over the lazy dog, and nobody minds."
FULL_LOOPS = 8
"""Conversations for each client of a closed loop, below which its beginning and end count too much."""
SLACK_TOKENS = 64
"""Reserve in a request's context for the chat template."""


def tokenizer_of(folder: Path) -> Tokenize:
    """Makes the function that tokenizes texts. Raises DataError if the folder has no tokenizer."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise DataError(f"{path} is not there; `make model` fetches the embedded model, whose tokenizer counts tokens")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise DataError(f"{path} is no tokenizer: {error}") from error
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def has_words(folder: Path) -> bool:
    """Whether a model's tokenizer has words; one of random weights has bytes only."""
    return len(tokenizer_of(folder)(_SAMPLE)) < len(_SAMPLE) // 2


def vocab_size_of(folder: Path) -> int:
    """Vocabulary size of a packed model. Raises DataError, QuantError."""
    size = read_json_object(folder / "config.json").get("vocab_size")
    if not isinstance(size, int) or size <= FIRST_MAPPED_ID:
        raise DataError(f"{folder}: its config.json has no vocab_size above {FIRST_MAPPED_ID}, so no ids can be sent")
    return size


def wanted_conversations(options: argparse.Namespace) -> int:
    """How many different ones a run uses."""
    if options.find_rate:
        return 1 << 30  # as many as there are: how many its probes need is not known before
    return WARM_UP + int(options.conversations) * int(options.rounds)


def make_plan(options: argparse.Namespace, data: Conversations, packed: Path | None) -> Plan:
    """Plans the load. packed: our form of the model; None for a service at a URL.

    Raises DataError if there are too few conversations.
    """
    words = packed is None or has_words(packed)
    counting = packed if packed is not None and words else options.models / EMBEDDED_NAME
    bounds = Bounds(options.turns, options.max_prompt_tokens, options.max_answer_tokens)
    vocab_size = None if words or packed is None else vocab_size_of(packed)
    wanted = wanted_conversations(options)
    selection = select(data.usable, wanted, bounds, tokenizer_of(counting), vocab_size=vocab_size, seed=options.seed)
    there = len(selection.conversations)
    if there and packed is not None and options.url is None:
        check_context(options, packed, selection.context_tokens + SLACK_TOKENS)
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
        promise=Slo(options.first_token_s, options.token_s),
        run_s=options.run_s,
        probe_s=options.probe_s,
        search_s=options.search_s,
        request_s=options.request_s,
        seed=options.seed,
    )


def check_context(options: argparse.Namespace, packed: Path, tokens: int) -> None:
    """Raises DataError if requests of so many tokens are longer than the model's context."""
    longest = read_json_object(packed / "config.json").get("max_position_embeddings")
    if isinstance(longest, int) and tokens > longest:
        raise DataError(
            f"requests of up to {tokens} tokens are too long for {packed.name}, whose context has {longest}: lower "
            f"--max-prompt-tokens ({options.max_prompt_tokens}) or --max-answer-tokens ({options.max_answer_tokens})"
        )


def first_result(options: argparse.Namespace, plan: Plan, data: Conversations, model: str) -> dict[str, Any]:
    """Starts a result with its metadata. For a service at a URL neither the machine nor the code is known."""
    here = machine()
    if options.url is not None:
        about = {"client_cpu": here["cpu"]}
    else:
        about = {**here, "machine": machine_facts(this_processor()), "threads": options.threads}
    return {
        "model": model,
        **about,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shown_command(["redoubt", "bench", "conversations", *options.arguments]),
        "load_average_before": os.getloadavg()[0],
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
        "notes": notes(options, plan),
        "servers": {},
        "missing": {},
        "rounds": {},
        "medians": {},
        "all_rounds": {},
        "ratios": {},
        "found_rates": {},
    }


def notes(options: argparse.Namespace, plan: Plan) -> list[str]:
    """Caveats for the figures."""
    few = [f"with fewer than {LEAST_ROUNDS} rounds nobody can tell a gain from noise"]
    alone = [f"{options.draft.name} drafts for our service alone, and for no peer"] if options.draft else []
    return [
        *(few if plan.rounds < LEAST_ROUNDS else []),
        *(alone if options.servers != (OURS,) else []),
        *_notes_of_short_rounds(options, plan),
    ]


def _notes_of_short_rounds(options: argparse.Namespace, plan: Plan) -> list[str]:
    if plan.rate is None and not options.find_rate and plan.conversations < FULL_LOOPS * plan.at_once:
        return [
            f"a round has {plan.conversations} conversations for {plan.at_once} clients: with fewer than {FULL_LOOPS} "
            "each, the round's beginning and end, when fewer are computed at once, weigh on its rates"
        ]
    return []


def measure_running(options: argparse.Namespace, data: Conversations) -> dict[str, Any]:
    """Measures the service at the URL. Raises DataError, ServerError, RuntimeError."""
    service = RunningService(options.url)
    plan = make_plan(options, data, options.model_folder)
    result = first_result(options, plan, data, without_places(service.models[0])) | {
        "servers": {service.name: service.about()}
    }
    warm_up(plan)(service)
    if options.find_rate:
        search, searches = Search(service, plan), []
        for _ in range(plan.rounds):
            searches.append(search.run())
            result["found_rates"] = rates_of_searches({service.name: searches})
            write(result, options.out)
        return result
    rounds: list[dict[str, Any]] = []
    for number in range(plan.rounds):
        try:
            rounds.append(run_once(service, plan, number))
        except RuntimeError as error:
            if not rounds:
                raise
            result["missing"] = {service.name: without_places(f"round {number + 1}: {error}")}
            break
        _put_rounds(result, {service.name: rounds})
        write(result, options.out)
    return result


def measure_fleet(options: argparse.Namespace, data: Conversations, folder: Path) -> dict[str, Any]:
    """Starts the servers and measures them. Raises DataError, ServerError, RuntimeError, OSError, QuantError."""
    model = (
        None if options.model is None else bench_model(options.model, options.models, options.environments / "models")
    )
    packed: Path = options.model_folder if model is None else model.make_packed()
    if options.draft is not None:
        check_draft(packed, packed.name, options.draft)
    plan = make_plan(options, data, packed)
    names = [packed.name if model is None else model.name, *(folder.name for folder in options.also)]
    result = first_result(options, plan, data, " and ".join(names))
    launches, missing = all_launches(options, model, packed, plan, folder)
    together = stay_loaded(options, launches)
    fleet = Fleet(launches, warm_up(plan), together=together)
    fleet.missing |= missing
    result["together"] = together

    def done(rounds: dict[str, list[dict[str, Any]]]) -> None:
        result["servers"], result["missing"] = fleet.about(), reasons_without_places(fleet.missing)
        _put_rounds(result, rounds)
        write(result, options.out)

    with fleet.running():
        if options.find_rate:
            for found in search_all(fleet, plan):
                result["found_rates"] = rates_of_searches(found)
                done({})
        else:
            play(fleet, plan, done)
    result["missing"] = reasons_without_places(fleet.missing)
    write(result, options.out)
    if not result["rounds"] and not result["found_rates"]:
        reasons = "; ".join(f"{name}: {in_one_line(reason)}" for name, reason in fleet.missing.items())
        raise ServerError(f"no server could be measured: {reasons}")
    return result


def in_one_line(reason: str) -> str:
    """The first line of a reason and the last one, which a server says of why it ends; the rest was shown before."""
    lines = [line for line in reason.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys(line.strip() for line in (*lines[:1], *lines[-1:])))


def search_all(fleet: Fleet, plan: Plan) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Searches the servers' rates in turn, as often as there are rounds. Yields the searches so far after each.

    A server that fails takes no further part.
    """
    searches: dict[str, Search] = {}
    results: dict[str, list[dict[str, Any]]] = {}
    for number in range(plan.rounds):
        for name in fleet.order(number):
            with fleet.turn(name) as server:
                if server is None:
                    continue
                search = searches.setdefault(name, Search(server, plan))
                with fleet.share_of_others(name) as cores:
                    try:
                        found = search.run()
                    except RuntimeError as error:
                        fleet.fails(name, f"search {number + 1}: {error}")
                        continue
                results.setdefault(name, []).append(found | {"cores_of_other_servers": cores()})
            yield results


def stay_loaded(options: argparse.Namespace, launches: Sequence[Launch]) -> bool:
    """Whether all servers stay loaded, rather than each being started for its turn.

    Ours is started for its turn where peers stand beside it: idle it takes a share of their cores. So are variants of
    it, each of which has a Ray of its own.
    """
    if len(launches) < 2:
        return not options.in_turn
    beside_ours = any(launch.workers for launch in launches) and not options.side_by_side
    return not (options.in_turn or options.variants or beside_ours) and fit_together(launches)


def all_launches(
    options: argparse.Namespace, model: BenchModel | None, packed: Path, plan: Plan, folder: Path
) -> tuple[list[Launch], dict[str, str]]:
    """The servers to start, and those that can't be, with the reason."""
    context_tokens = plan.selection.context_tokens + SLACK_TOKENS
    sizes = Sizes(
        threads=options.threads,
        slots=options.slots,
        context_tokens=context_tokens,
        kv_bytes=kv_memory_bytes(packed, options.slots, context_tokens),
    )
    own = OwnSettings(
        workers=options.workers,
        # What random weights write repeats itself, so that guesses would dominate the result.
        guesses=not options.no_guesses and not plan.selection.conversations[0].requests[0].token_ids,
        prefix_cache=not options.no_prefix_cache,
        kv_type=options.kv_type,
        draft=options.draft,
    )
    launches: list[Launch] = []
    missing: dict[str, str] = {}
    variants = options.variants
    if not own.guesses and "no_guesses" in variants:
        missing[f"{OURS}_no_guesses"] = f"{OURS} itself has no guesses in this run"
        variants = tuple(name for name in variants if name != "no_guesses")
    if "no_drafts" in variants and not has_drafts([packed, *options.also], own):
        missing[f"{OURS}_no_drafts"] = f"{OURS} itself has no drafts in this run: give it a model with --draft"
        variants = tuple(name for name in variants if name != "no_drafts")
    if OURS in options.servers:
        launches += own_launches([packed, *options.also], own, variants, sizes, folder, options.environments)
    for name in options.servers:
        if name != OURS and model is not None:
            try:
                launches.append(peer_launch(name, model, sizes, options.environments))
            except (InstallError, OSError, ImportError, QuantError) as error:
                missing[name] = str(error)
    return launches, missing


def has_drafts(packed: Sequence[Path], own: OwnSettings) -> bool:
    """Whether a model is drafted for: by another one, by a head, or by a layer of its own."""
    return own.draft is not None or any(_native.Model.has_predictor(str(one)) for one in packed)


def _put_rounds(result: dict[str, Any], rounds: dict[str, list[dict[str, Any]]]) -> None:
    result["rounds"] = {name: [without_samples(one) for one in some] for name, some in rounds.items()}
    result["medians"] = {name: medians(some) for name, some in rounds.items()}
    result["all_rounds"] = {name: pooled(some) for name, some in rounds.items()}
    result["ratios"] = ratios(rounds)


def write(result: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json_text(result), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 if a server is missing from the result."""
    options = parse(arguments)
    exit_on_end_signals()
    try:
        check_writable(options.out)
        data = read_conversations(options.data)
        if options.url is not None:
            result = measure_running(options, data)
        else:
            with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder:
                result = measure_fleet(options, data, Path(folder))
        write(result, options.out)
    except (ValueError, ServerError, RuntimeError, OSError, QuantError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("redoubt: interrupted; all servers are ended", file=sys.stderr)
        return 130
    print(table(result))
    return 1 if result["missing"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
