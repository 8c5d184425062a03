"""Compares our engine with others on one model: `redoubt bench compare --threads 2 --out X.json`.

Each engine is a process with the model loaded. A first round of shortened works finds each engine's best variant
(attention, KV layout, repacking) for each work. Then come `--repeats` rounds. In each, every engine measures every work
in turn, and another engine begins each round, so that load from outside affects all engines alike. In its turn an
engine repeats a short work for a second. The first time is recorded separately, because clock and caches are still
cold; the median of the others counts, as in the peers' own benchmarks. A work that takes a second or more is done once.

The machine's two limits are sampled between rounds. The JSON is written after every round, so that an interrupted run
keeps its results; each figure is printed when it is measured. A peer that can't be installed or started is listed in
`missing` with the reason; a crash and a refusal are results. Peers are installed once, into `--environments`. The exit
status is 1 if a peer is missing.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from bench.code_age import last_engine_change
from bench.common import ROOT, OneLineParser, at_least, exit_on_end_signals, json_text, machine, number_list
from bench.compare_table import table
from bench.limits import Demand
from bench.models import NAMES, bench_model
from bench.peers import InstallError, Peer
from bench.places import shown_command, without_places
from bench.process import Contender, CrashError
from bench.processor import machine_facts, this_processor
from bench.rates import Rates, best_rates, rates_json, sample_rates
from bench.starting import Setting, start_peer
from bench.work import CLOCKS, NotSupportedError, Work, works
from kernels import _native

PEER_NAMES = ("llama_cpp", "ik_llama_cpp", "vllm_cpu", "openvino_genai", "ipex_llm")
OURS = "redoubt"
CRASHES_ALLOWED = 3
TUNING_TOKENS, TUNING_STEPS = 1024, 8
TURN_S, MOST_TIMES = 1.0, 20


class Comparison:
    """The engines and their measurements so far."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        works: Sequence[Work],
        repeats: int,
        tuning_tokens: int = TUNING_TOKENS,
    ) -> None:
        """The contenders must have been started."""
        self._tuning_tokens = tuning_tokens
        self.contenders = list(contenders)
        self.crashes: list[dict[str, str]] = []
        self._works = works
        self._repeats = repeats
        self._best: dict[tuple[str, Work], str] = {}
        self._rounds: dict[tuple[str, Work], list[float]] = {}
        self._first: dict[tuple[str, Work], list[float]] = {}
        self._refusals: dict[tuple[str, Work], str] = {}

    def turns(self) -> int:
        """The number of rounds for `play`."""
        return 1 + self._repeats

    def order(self, turn: int) -> list[Contender]:
        """The engines in the round's order. Another one begins each round, because its position affects the speed."""
        apart = max(1, len(self.contenders) // self._repeats)  # so that few rounds do not all begin with our engine
        first = (turn - 1) * apart % len(self.contenders)
        return self.contenders[first:] + self.contenders[:first]

    def play(self, turn: int, progress: Any) -> None:
        """Plays one round of all works; round 0 finds the best variants."""
        if turn == 0:
            for one in self.contenders:
                progress.set_description(f"tuning {one.name}")
                self._tune(one)
            progress.update(len(self._works))
            return
        for work in self._works:
            progress.set_description(work.name)
            for one in self.order(turn):
                if (one.name, work) in self._best:
                    rates = self._rates(one, work, self._best[one.name, work])
                    if rates:
                        rate = warm(rates)
                        self._rounds.setdefault((one.name, work), []).append(rate)
                        self._first.setdefault((one.name, work), []).append(rates[0])
                        times = f"the first of {len(rates)} times {rates[0]:.1f}" if len(rates) > 1 else ""
                        progress.write(f"{one.name:24}{work.name:24}{rate:10.1f} tokens/s {times}", file=sys.stderr)
            progress.update()

    def _tune(self, one: Contender) -> None:
        """Measures every variant at every shortened work, one variant after the other, because a change may reload.

        Variants are measured twice and the fastest time counts, so that a burst of load from outside does not decide.
        An engine with one variant is measured too, to warm it up.
        """
        assert one.about is not None
        once = one.about.variants
        turns = [*once, *reversed(once)] if len(once) > 1 else once
        short = {work: shortened(work, self._tuning_tokens) for work in self._works}
        rates: dict[Work, dict[str, float]] = {work: {} for work in short.values()}  # 0: crashed or refused
        for variant in turns:
            for work, found in rates.items():
                if found.get(variant) != 0.0:
                    found[variant] = max([found.get(variant, 0.0), *self._rates(one, work, variant)])
        for work in self._works:
            found = rates[short[work]]
            if any(found.values()):
                self._best[one.name, work] = max(found, key=found.__getitem__)
            else:
                self._refusals.setdefault((one.name, work), self._refusals[one.name, short[work]])

    def _rates(self, one: Contender, work: Work, variant: str) -> list[float]:
        """The rates of one turn, in tokens a second. Records a refusal or a crash, which ends the turn."""
        if sum(crash["engine"] == one.name for crash in self.crashes) >= CRASHES_ALLOWED:
            self._refusals.setdefault((one.name, work), f"given up after {CRASHES_ALLOWED} crashes")
            return []
        rates: list[float] = []
        end_s = time.monotonic() + TURN_S
        try:
            while not rates or (time.monotonic() < end_s and len(rates) < MOST_TIMES):
                rates.append(work.tokens / one.measure(work, variant))
        except NotSupportedError as error:
            self._refusals[one.name, work] = without_places(str(error))
        except CrashError as error:
            reason = without_places(str(error))
            self.crashes.append({"engine": one.name, "work": work.name, "variant": variant, "reason": reason})
            self._refusals[one.name, work] = "crashed"
        return rates

    def figures(self, one: Contender) -> dict[str, Any]:
        """One engine's tokens a second by work, or the reason why there are none."""
        assert one.about is not None
        results: dict[str, Any] = {}
        for work in self._works:
            rounds = self._rounds.get((one.name, work))
            if rounds:
                results[work.name] = {
                    "median": round(statistics.median(rounds), 2),
                    "rounds": [round(rate, 2) for rate in rounds],
                    "first": [round(rate, 2) for rate in self._first[one.name, work]],
                    "variant": self._best[one.name, work],
                }
            elif (one.name, work) in self._refusals:
                results[work.name] = {"none": self._refusals[one.name, work]}
        about = {"version": one.about.version, "settings": one.about.settings, "load_s": round(one.about.load_s, 3)}
        return {**about, "results": results}

    def ratios(self, ours: str, peer: str) -> dict[str, Any]:
        """Our speed over the peer's, in rounds that both finished; `first`: of the first time in each turn."""
        result = {}
        for work in self._works:
            a, b = self._rounds.get((ours, work), []), self._rounds.get((peer, work), [])
            within = [x / y for x, y in zip(a, b, strict=False)]
            if within:
                result[work.name] = {
                    "of_medians": round(statistics.median(a) / statistics.median(b), 2),
                    "lowest": round(min(within), 2),
                    "highest": round(max(within), 2),
                    "first": round(
                        statistics.median(self._first[ours, work]) / statistics.median(self._first[peer, work]), 2
                    ),
                }
        return result


def warm(rates: Sequence[float]) -> float:
    """The median of all rates but the first, or the only one."""
    return statistics.median(rates[1:] or rates)


def shortened(work: Work, tokens: int = TUNING_TOKENS) -> Work:
    """A work of the same kind that takes seconds, long enough to compare the variants of an engine.

    tokens: the most of context, of all streams together.
    """
    context = min(work.context_tokens, max(tokens // work.streams, 16))
    return replace(work, context_tokens=context, new_tokens=min(work.new_tokens, TUNING_STEPS))


def work_table(works: Sequence[Work], demand: Demand, samples: Sequence[Rates]) -> dict[str, Any]:
    """Each work's demand, and the machine's limit for it."""
    result = {}
    for work in works:
        read_bytes, macs = demand.bytes_and_macs(work)
        limit, by = demand.limit_tokens_per_s(work, best_rates(samples))
        result[work.name] = {
            **asdict(work),
            **{"bytes_per_token": round(read_bytes / work.tokens), "macs_per_token": round(macs / work.tokens)},
            **{"limit_tokens_per_s": round(limit, 2), "limited_by": by},
        }
    return result


def our_contenders(packed: Path, options: argparse.Namespace, works: Sequence[Work]) -> list[Contender]:
    """Our engine with the first KV type and the first compute type, which is compared with the peers, and variants.

    `redoubt_<type>` has another KV type, `redoubt_answers_<type>` another compute type.
    """
    kv, *other_kv = options.kv_type
    compute, *other_compute = options.compute_type
    kinds = [
        (OURS, kv, compute),
        *((f"{OURS}_{other}", other, compute) for other in other_kv),
        *((f"{OURS}_answers_{other}", kv, other) for other in other_compute),
    ]
    return [
        Contender(name, our_command(packed, options, works, *types), ROOT, options.environments / f"{name}.log", 600)
        for name, *types in kinds
    ]


def our_command(
    packed: Path, options: argparse.Namespace, works: Sequence[Work], kv_type: str, compute_type: str
) -> Sequence[str]:
    """The command line of our engine, sized for the works."""
    listed = json.dumps([asdict(work) for work in works])
    return [
        *(sys.executable, "-m", "bench.contender", str(packed.resolve()), "--threads", str(options.threads)),
        *("--kv-type", kv_type, "--compute-type", compute_type),
        *("--prompt-compute-type", options.prompt_compute_type),
        *("--weight-memory", options.weight_memory),
        *("--clock", options.clock, "--works", listed),
    ]


def compare(options: argparse.Namespace, todo: Sequence[Work]) -> dict[str, Any]:
    """Runs the comparison and writes `options.out` after each round. Raises CrashError if our engine does not start."""
    model = bench_model(options.model, options.models, options.environments / "models")
    packed = model.make_packed()
    types = options.compute_type[0], options.prompt_compute_type
    options.kv_type = tuple(
        dict.fromkeys(_native.Model.chosen_kv_type(str(packed), name, *types) for name in options.kv_type)
    )
    demand = Demand.of(packed, options.kv_type[0])
    setting = Setting(
        environments=options.environments,
        model=model,
        weights=demand.layer_weights + demand.head_weights,
        threads=options.threads,
        clock=options.clock,
        context_tokens=max(work.context_tokens + work.new_tokens for work in todo),
        timeout_s=options.timeout,
    )
    contenders, missing = our_contenders(packed, options, todo), {}
    changed = last_engine_change()
    result: dict[str, Any] = {
        "model": model.name,
        **machine(),
        "machine": machine_facts(this_processor(), options.machine),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code_at": None if changed is None else changed.at.isoformat(),
        "threads": options.threads,
        "command": shown_command(["redoubt", "bench", "compare", *options.arguments]),
        "load_average_before": os.getloadavg()[0],
        "kv_type": options.kv_type,
        "compute_type": options.compute_type,
        "clock": options.clock,
        "repeats": options.repeats,
    }
    try:
        variants = len(contenders)
        for ours in contenders:
            ours.start()
        for name in options.peers:
            tqdm.write(f"starting {name}", file=sys.stderr)
            try:
                peer: Peer = import_module(f"bench.peers.{name}").PEER
                contenders.append(start_peer(peer, setting, contenders))
            except (InstallError, CrashError, MemoryError, OSError, ImportError) as error:
                missing[name] = without_places(str(error))
                tqdm.write(f"{name} is missing: {error}", file=sys.stderr)
        comparison = Comparison(contenders, todo, options.repeats, options.tuning_tokens)
        samples = [sample_rates(options.threads)]
        with tqdm(total=comparison.turns() * len(todo), file=sys.stderr, unit="work", leave=False) as progress:
            for turn in range(comparison.turns()):
                comparison.play(turn, progress)
                samples.append(sample_rates(options.threads))
                result |= {
                    "rounds_finished": turn,
                    "limits": rates_json(samples),
                    "works": work_table(todo, demand, samples),
                    "engines": {one.name: comparison.figures(one) for one in contenders},
                    "ratios": {one.name: comparison.ratios(OURS, one.name) for one in contenders[1:]},
                    "ratios_of_variants": {
                        ours.name: {
                            peer.name: comparison.ratios(ours.name, peer.name) for peer in contenders[variants:]
                        }
                        for ours in contenders[1:variants]
                    },
                    "missing": missing,
                    "crashes": comparison.crashes,
                }
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json_text(result))
    finally:
        for one in contenders:
            one.stop()
    return result


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="redoubt bench compare", description="Compare our engine with others.")
    parser.add_argument("--model", choices=NAMES, default="embedded", help="all but embedded have random weights")
    parser.add_argument("--peers", default=",".join(PEER_NAMES), help="with commas (default: %(default)s)")
    parser.add_argument("--threads", type=int, required=True, help="compute threads of every engine")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--prompt", type=number_list, default=(512,), help="prompts' tokens (default 512)")
    parser.add_argument("--batch", type=number_list, default=(1, 4, 8, 16, 32), help="streams (default 1,4,8,16,32)")
    parser.add_argument("--decode-context", type=int, default=128, help="tokens before decoding (default %(default)s)")
    parser.add_argument("--context", type=number_list, default=(), help="long contexts: prompt, then one stream")
    parser.add_argument("--generate", type=int, default=32, help="decode steps (default %(default)s)")
    parser.add_argument(
        "--kv-type", type=kv_types, default=("auto",), help="ours; int8,bf16 runs both, int8 beside the peers"
    )
    parser.add_argument(
        "--compute-type", type=compute_types, default=("auto",), help="ours; auto,bf16 runs both, auto beside the peers"
    )
    parser.add_argument("--prompt-compute-type", choices=("auto", "same", "bf16"), default="auto", help="ours")
    parser.add_argument("--weight-memory", choices=("auto", "mapped", "huge_pages"), default="auto", help="ours")
    parser.add_argument(
        "--tuning-tokens", type=at_least(16), default=TUNING_TOKENS, help="context that chooses variants (%(default)s)"
    )
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for loading, and for each measurement")
    parser.add_argument("--machine", metavar="NAME", help="its name in tables (default: the processor's generation)")
    parser.add_argument("--out", type=Path, required=True, help="the JSON")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="(default: the repository's)")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    options = parser.parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    options.environments = options.environments.absolute()
    options.peers = [name for name in options.peers.split(",") if name]
    unknown = set(options.peers) - set(PEER_NAMES)
    if unknown or min(options.threads, options.repeats, options.generate, options.decode_context) < 1:
        parser.error(f"peers are {', '.join(PEER_NAMES)}; numbers are at least 1")
    options.environments.mkdir(parents=True, exist_ok=True)
    return options


def kv_types(text: str) -> tuple[str, ...]:
    """KV types with commas, for argparse."""
    return types_of(text, ("auto", *_native.KV_TYPES))


def compute_types(text: str) -> tuple[str, ...]:
    """Compute types with commas, for argparse."""
    return types_of(text, ("auto", "int8", "bf16"))


def types_of(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Different names with commas. Raises argparse.ArgumentTypeError for one that is not known."""
    types = tuple(dict.fromkeys(text.split(",")))
    if not set(types) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(known)}")
    return types


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 if a peer is missing from the result."""
    options = parse(arguments)
    exit_on_end_signals()
    todo = works(options.prompt, options.decode_context, options.generate, options.batch, options.context)
    try:
        result = compare(options, todo)
    except (CrashError, OSError) as error:
        print(f"bench.compare: {error}", file=sys.stderr)
        return 2
    print(table(result))
    return 1 if result["missing"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
