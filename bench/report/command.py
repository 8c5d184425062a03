"""`redoubt bench report`: measures this machine with one model, and writes a page with plots and its JSON.

    redoubt bench report MODEL --out FOLDER [--text FILE] [--quick] [--only NAME,...] [--skip NAME,...]

FOLDER gets `report.html`, which needs no other file and no network, and `report.json`. The JSON is written after every
section, so that the same command goes on after an interruption, with the first section that has no result. A section
that fails is in the page with its reason, and the status is 1. Progress goes to the standard error.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from app.workers.numa import Slot, numa_nodes
from bench.common import OneLineParser, at_least, commit, exit_on_end_signals
from bench.cores import default_threads, node_cores
from bench.eval.journal import Journal
from bench.report.pace import Pace
from bench.report.page import page
from bench.report.record import Record, RecordError
from bench.report.section import NotMeasuredError, ReportOptions, Section, Setup
from bench.report.sections import SECTIONS
from bench.report.subject import SERVED_QTYPE, Subject
from bench.report.texts import about
from kernels import _native
from quant.errors import QuantError
from quant.files.cache_folder import file_state

PAGE_NAME: Final = "report.html"
_WINDOWS, _QUICK_WINDOWS = 20, 4
_NAMES: Final = tuple(section.name for section in SECTIONS)


def measure_report(options: ReportOptions, chosen: Sequence[Section], *, fresh: bool = False) -> int:
    """Measures the sections that have no result yet, and writes JSON and page. Returns 1 if one failed, else 0.

    fresh: the chosen sections are measured anew; the others keep what they have.
    Raises RecordError, QuantError, OSError for what can't begin; KeyboardInterrupt with all that was measured written.
    """
    subject = Subject.read(options.model, options.out / "models")
    options.out.mkdir(parents=True, exist_ok=True)
    nodes = tuple(_nodes())
    identity = _identity(options)
    again = [section.name for section in chosen] if fresh else None
    record = Record(options.out, _about(options, subject), identity, forget=again)
    journal = Journal(identity, options.out / "parts")
    for name in again or ():
        journal.forget(f"{name}/")
    setup = Setup(options=options, subject=subject, nodes=nodes, journal=journal, pace=_pace(subject, options.threads),
                  tell=_tell)  # fmt: skip
    try:
        _measure_all(setup, record, [section for section in chosen if not record.is_settled(section.name)])
    finally:
        record.write()
        (options.out / PAGE_NAME).write_text(page(record.report, SECTIONS), encoding="utf-8")
    failed = any(entry["status"] == "failed" for entry in record.sections.values())
    if not failed:
        journal.complete()
        with suppress(OSError):  # parts of a report with other options
            (options.out / "parts").rmdir()
    if not options.keep:
        shutil.rmtree(options.out / "models", ignore_errors=True)
    return 1 if failed else 0


def _measure_all(setup: Setup, record: Record, todo: Sequence[Section]) -> None:
    if todo:
        total_s = sum(section.expected_s(setup) for section in todo)
        print(f"redoubt: {len(todo)} of {len(SECTIONS)} sections, about {about(total_s)} in all", file=sys.stderr)
    for number, section in enumerate(todo, 1):
        expected_s = section.expected_s(setup)
        print(f"redoubt: [{number}/{len(todo)}] {section.title}: about {about(expected_s)}", file=sys.stderr)
        began_s = time.monotonic()
        try:
            result = section.measure(setup)
        except NotMeasuredError as error:
            record.put(section.name, "not measured", time.monotonic() - began_s, reason=f"{error}")
            _tell(f"not measured: {error}")
        except Exception as error:  # one section's failure leaves the others
            reason = f"{error}" or type(error).__name__
            record.put(section.name, "failed", time.monotonic() - began_s, reason=reason)
            _tell(f"failed: {reason}")
        else:
            record.put(section.name, "measured", time.monotonic() - began_s, result=result)
            _tell(f"took {time.monotonic() - began_s:.0f} seconds")


def _tell(text: str) -> None:
    print(f"redoubt:   {text}", file=sys.stderr, flush=True)


def _nodes() -> list[Slot]:
    return numa_nodes(sorted(os.sched_getaffinity(0)))


def _pace(subject: Subject, threads: int) -> Pace:
    try:
        from bench.rates import Rates, sample_rates
    except SystemExit:  # a wheel has no kernels to measure the rates with
        return Pace.guessed(subject.weights)
    rates: Rates = sample_rates(threads)
    return Pace.expected(subject.weights, rates.read_bytes_per_s, rates.macs_per_s)


def _identity(options: ReportOptions) -> dict[str, Any]:
    """Everything that determines the results, except the measured values."""
    return {
        "model": file_state(options.model),
        "text": None if options.text is None else file_state(options.text),
        "policy": None if options.policy is None else file_state(options.policy),
        "windows": options.windows,
        "threads": options.threads,
        "quick": options.quick,
        "cpu": _native.cpu_model(),
        "tier": _native.default_tier(),
        "commit": commit(),
    }


def _about(options: ReportOptions, subject: Subject) -> dict[str, Any]:
    try:
        release = version("redoubt")
    except PackageNotFoundError:
        release = "unknown"
    return {
        "model": {
            "name": subject.name,
            "family": subject.family,
            "weights": subject.weights,
            "context_tokens": subject.context_tokens,
            "qtype": subject.qtype,
            "is_checkpoint": subject.is_checkpoint,
            "is_random": subject.is_random,
            "served": SERVED_QTYPE if subject.is_checkpoint else subject.qtype,
        },
        "cpu": _native.cpu_model(),
        "tier": _native.default_tier(),
        "threads": options.threads,
        "quick": options.quick,
        "version": release,
        "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": shown_command(options),
    }


def shown_command(options: ReportOptions) -> str:
    """The command as the page shows it: files by their names, without their places."""
    words = ["redoubt", "bench", "report", options.model.resolve().name, "--out", options.out.resolve().name]
    if options.text is not None:
        words += ["--text", options.text.name, "--windows", str(options.windows)]
    words += ["--threads", str(options.threads)]
    words += ["--quick"] if options.quick else []
    words += ["--policy", options.policy.name] if options.policy is not None else []
    return shlex.join(words)


def chosen_sections(only: Sequence[str], skip: Sequence[str]) -> list[Section]:
    """The sections to measure. Raises ValueError for a name that there is not, or if nothing is left."""
    for name in (*only, *skip):
        if name not in _NAMES:
            raise ValueError(f"there is no section {name!r}: {', '.join(_NAMES)}")
    chosen = [section for section in SECTIONS if section.name in (only or _NAMES) and section.name not in skip]
    if not chosen:
        raise ValueError("--only and --skip leave no section")
    return chosen


def names(text: str) -> list[str]:
    """Words with commas, for argparse."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="redoubt bench report", description="Measure this machine, and write a page with plots."
    )
    listed = ", ".join(_NAMES)
    parser.add_argument("model", type=Path, metavar="MODEL", help="a converted folder, a Hugging Face folder or a GGUF")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=f"for {PAGE_NAME} and report.json")
    parser.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text, for the perplexity")
    parser.add_argument(
        "--windows", type=at_least(1), metavar="N",
        help=f"of 512 tokens of the text (default {_WINDOWS}, with --quick {_QUICK_WINDOWS})",
    )  # fmt: skip
    parser.add_argument("--threads", type=at_least(1), help="compute threads (default: the first NUMA node's cores)")
    parser.add_argument("--quick", action="store_true", help="fewer points, one round each: minutes with a small model")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...", help=f"measure only these of: {listed}")
    parser.add_argument("--skip", type=names, default=[], metavar="NAME,...", help="measure all but these")
    parser.add_argument("--keep", action="store_true", help="keep a checkpoint's conversions in FOLDER/models")
    parser.add_argument(
        "--fresh", action="store_true", help="measure the chosen sections anew, also those that FOLDER has"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="in a trust domain: what clients demand of it")
    return parser


def _options(parser: OneLineParser, parsed: argparse.Namespace) -> ReportOptions:
    cores = node_cores()
    if parsed.threads is not None and parsed.threads > cores:
        parser.error(f"--threads {parsed.threads}: the first NUMA node has {cores} cores that this process may use")
    for name, path in (("--text", parsed.text), ("--policy", parsed.policy)):
        if path is not None and not path.is_file():
            parser.error(f"{name} {path}: no such file")
    if find_spec("matplotlib") is None:
        parser.error("the plots need matplotlib: pip install 'redoubt[bench]', in a clone pip install -e '.[bench]'")
    return ReportOptions(
        model=parsed.model,
        out=parsed.out,
        text=parsed.text,
        windows=parsed.windows or (_QUICK_WINDOWS if parsed.quick else _WINDOWS),
        threads=parsed.threads or default_threads(),
        quick=parsed.quick,
        keep=parsed.keep,
        policy=parsed.policy,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        chosen = chosen_sections(parsed.only, parsed.skip)
    except ValueError as error:
        parser.error(f"{error}")
    options = _options(parser, parsed)
    exit_on_end_signals()  # so that what was measured is written
    try:
        status = measure_report(options, chosen, fresh=parsed.fresh)
    except (RecordError, QuantError, OSError, subprocess.SubprocessError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"redoubt: interrupted; the same command goes on. Remove {options.out} if it shall not", file=sys.stderr)
        return 130
    print(options.out / PAGE_NAME)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
