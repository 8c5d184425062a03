"""`redoubt bench table`: compares engines on this machine and writes the tables of the documentation anew.

Says first what it will measure, install and make, and how long that takes. An interrupted run keeps the rounds that
were finished, and the same command goes on with what is not. With --render it measures nothing. The exit status is 1 if
a peer or a model is missing from the results, also of earlier runs, 2 if something could not be done.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench import compare
from bench.code_age import last_engine_change
from bench.common import ROOT, OneLineParser, at_least, available_memory_bytes, commit, exit_on_end_signals, json_text
from bench.cores import default_threads
from bench.models import bench_model, weights_of
from bench.peers import Peer
from bench.process import CrashError
from bench.processor import this_processor
from bench.rates import Rates, sample_rates
from bench.table.conversations import read_conversations
from bench.table.pages import Pages, recorded_change, short_table, written
from bench.table.pictures import draw_pictures
from bench.table.results import PEERS_BEFORE, Machine, ResultsError, read_results
from bench.table.runs import (
    INSTALLING,
    RUNS,
    Run,
    chosen_runs,
    estimated_s,
    is_finished,
    missing_peers,
    our_memory_bytes,
    peers_that_fit,
    unmade_bytes,
)
from bench.work import works
from quant.errors import QuantError

PACKAGES: Final = ("gguf", "safetensors")
"""Packages that write models for the peers."""
DEFAULT_MODELS: Final = ("embedded", "1.1b", "qwen3-8b")
PEERS_FOLDER: Final = ROOT / "build" / "peers"
KNOWN_MODELS: Final = tuple(dict.fromkeys(run.model for run in RUNS))
Compare = Callable[[Sequence[str]], dict[str, Any]]
"""Runs a comparison from its command line, which ends in the JSON's path."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="redoubt bench table", description="Measure beside the peers; write the tables anew.")
    parser.add_argument("--render", action="store_true", help="only write the tables anew from what is measured")
    parser.add_argument("--threads", type=at_least(1), help="of every engine (default: the first NUMA node's cores)")
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS), help=f"of {','.join(KNOWN_MODELS)} (%(default)s)")
    parser.add_argument("--peers", help=f"of {','.join(compare.PEER_NAMES)} (default: those that are fast enough)")
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--again", action="store_true", help="also what is measured with today's code already")
    parser.add_argument(
        "--machine", metavar="NAME", help="its name in the tables (default: the processor's generation)"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="folder of the JSONs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    parser.add_argument("--environments", type=Path, default=PEERS_FOLDER, help="(default: build/peers)")
    options = parser.parse_args(arguments)
    options.models = [name for name in options.models.split(",") if name]
    options.peers = options.peers if options.peers is None else [name for name in options.peers.split(",") if name]
    for names, known in ((options.models, KNOWN_MODELS), (options.peers or (), compare.PEER_NAMES)):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"there is no {unknown[0]!r}; choose of {', '.join(known)}")
    if options.machine is not None and not re.fullmatch(r"[^|\r\n]+", options.machine):
        parser.error("a machine's name is a line without |")
    if not options.models:
        parser.error(f"name a model of {', '.join(KNOWN_MODELS)}")
    if not options.results.is_dir():  # an installed package has none
        parser.error(f"--results: {options.results} is no folder: name the one for the JSONs")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return render(options) if options.render else measure_and_render(options, run_compare)
    except (ResultsError, OSError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2


def render(options: argparse.Namespace) -> int:
    """Writes the tables from the JSONs; prints the short one. Raises ResultsError, OSError."""
    results, pages = read_results(options.results), Pages.of(options.docs, options.results)
    change = last_engine_change()
    if not pages.short.exists():  # an installed package has no documentation
        print(short_table(results, change))
        return 0
    change = change or recorded_change(pages.short.read_text(encoding="utf-8"))
    texts = written(results, read_conversations(options.results), pages, change)
    for path, text in texts.items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path}", file=sys.stderr)
    for path in draw_pictures(results.comparisons, options.docs / "plots"):
        print(f"drawn: {path}", file=sys.stderr)
    print(short_table(results, change))
    return 0


def measure_and_render(options: argparse.Namespace, compare_one: Compare) -> int:
    """Measures what is not measured yet, then renders, also when it is interrupted. Raises ResultsError, OSError."""
    read_results(options.results)  # before an hour's work
    absent = [package for package in PACKAGES if find_spec(package) is None]
    if absent:
        raise ResultsError(
            f"the package {absent[0]} is missing: install the extra `bench`, as pip install -e '.[bench]'"
        )
    threads = options.threads or default_threads()
    machine = Machine(options.machine or this_processor().name, threads)
    exit_on_end_signals()
    status = 0
    runs, left_out = runs_to_do(options, machine)
    if runs:
        announce(options, machine, runs, sample_rates(threads))
    try:
        for run in runs:
            status = max(status, measure(options, machine, run, compare_one))
    except KeyboardInterrupt:
        print("redoubt: interrupted; the same command goes on from here", file=sys.stderr)
        status = 130
    finally:
        render(options)
    return status or (1 if left_out else 0)


def runs_to_do(options: argparse.Namespace, machine: Machine) -> tuple[list[Run], bool]:
    """The runs that are not finished and fit this machine, and whether a model or a peer is missing without them.

    Says what is left out.
    """
    now, change = commit(), last_engine_change()
    code_at = None if change is None else change.at.isoformat()
    todo: list[Run] = []
    left_out, to_make_bytes = False, 0
    for run in chosen_runs(options.models, options.peers, quick=options.quick):
        adopt(working(options) / run.file(machine), options.results / run.file(machine))
        if not options.again and is_finished(options.results / run.file(machine), run, now, code_at):
            absent = missing_peers(options.results / run.file(machine))
            without = f", without {', '.join(absent)}" if absent else ""
            say(f"{run.name}: is measured with this code already{without} (--again measures it anew)")
            left_out |= bool(absent)
            continue
        weights = weights_of(run.model)
        needed, free = our_memory_bytes(weights), available_memory_bytes()
        if needed > free:
            say(f"{run.name}: left out: needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")
            left_out = True
            continue
        model = bench_model(run.model, ROOT / "models", options.environments / "models")
        made = 0 if any(run.model == other.model for other in todo) else unmade_bytes(model, weights, run.peers)
        options.environments.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(options.environments).free
        if to_make_bytes + made > disk:
            say(f"{run.name}: left out: its files need {made / 1e9:.1f} GB of disk, {disk / 1e9:.1f} GB are free")
            left_out = True
            continue
        to_make_bytes += made
        todo.append(run)
    return todo, left_out


def announce(options: argparse.Namespace, machine: Machine, runs: Sequence[Run], rates: Rates) -> None:
    """Says what will be done and how long it takes."""
    say(f"This machine is called {machine.title}. To measure:")
    total_s = 0.0
    for run in runs:
        weights = weights_of(run.model)
        memory = {name: peer(name).memory_per_weight_bytes for name in run.peers}
        peers = peers_that_fit(run, weights, available_memory_bytes(), memory)
        takes_s = estimated_s(replace(run, peers=peers), weights, rates)
        total_s += takes_s
        rounds = f"{run.repeats} round{'' if run.repeats == 1 else 's'}"
        missing = [name for name in run.peers if name not in peers]
        without = f" (no memory for {', '.join(missing)})" if missing else ""
        say(f"  {run.name}: {rounds} beside {', '.join(peers) or 'no peer'}{without}: about {minutes(takes_s)}")
    names = dict.fromkeys(name for run in runs for name in run.peers)
    to_install = [name for name in names if not peer(name).is_installed(options.environments)]
    if to_install:
        say(f"To install first, into {options.environments}: {'; '.join(INSTALLING[name] for name in to_install)}")
    ends = datetime.now().astimezone() + timedelta(seconds=total_s)
    more = ", and what installing takes" if to_install else ""
    say(f"About {minutes(total_s)} in all{more}, until {ends:%H:%M}. Nothing else should run meanwhile.")


def measure(options: argparse.Namespace, machine: Machine, run: Run, compare_one: Compare) -> int:
    """Makes one run and writes its JSON. Returns 1 if a peer is missing, 2 after printing a failure, else 0."""
    partial = working(options) / run.file(machine)
    partial.parent.mkdir(parents=True, exist_ok=True)
    arguments = run.arguments(machine.threads, partial)
    if options.environments != PEERS_FOLDER:
        arguments += ["--environments", str(options.environments)]
    if options.machine:
        arguments += ["--machine", options.machine]
    try:
        return 1 if compare_one(arguments)["missing"] else 0
    except (CrashError, QuantError, OSError, ImportError) as error:
        print(f"redoubt: {run.name} was not measured: {error}", file=sys.stderr)
        return 2
    finally:
        adopt(partial, options.results / run.file(machine))


def run_compare(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs `redoubt bench compare`, without its table. Raises what `bench.compare.compare` raises."""
    options = compare.parse(arguments)
    todo = works(options.prompt, options.decode_context, options.generate, options.batch, options.context)
    return compare.compare(options, todo)


def working(options: argparse.Namespace) -> Path:
    """The folder of unfinished runs' JSONs."""
    return Path(options.environments).parent / "table"


def adopt(partial: Path, path: Path) -> None:
    """Moves a run's JSON to the results if it has a round, unless more rounds of the same code are there already."""
    try:
        new = json.loads(partial.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:  # cut off while it was written
        partial.unlink()
        return
    if new["rounds_finished"] < 1 or (new["rounds_finished"] < new["repeats"] and _has_more(path, new)):
        partial.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    gone = sorted(peers_before(path) - set(new["engines"]))
    if gone:  # so that the tables say what is not compared any more
        partial.write_text(json_text(new | {PEERS_BEFORE: gone}), encoding="utf-8")
    shutil.move(partial, path)


def peers_before(path: Path) -> set[str]:
    """The engines of the JSON that a new one replaces, and of those before it; empty if there is none."""
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        return {*old["engines"], *old.get(PEERS_BEFORE, ())}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _has_more(path: Path, new: dict[str, Any]) -> bool:
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        return bool(old["commit"] == new["commit"] and old["rounds_finished"] > new["rounds_finished"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def peer(name: str) -> Peer:
    found = import_module(f"bench.peers.{name}").PEER
    assert isinstance(found, Peer)
    return found


def minutes(seconds: float) -> str:
    """Words a duration in minutes, rounded up."""
    number = max(1, -(-int(seconds) // 60))
    return f"{number} minute{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """Prints to standard error; only the table goes to standard output."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
