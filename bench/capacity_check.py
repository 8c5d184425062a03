"""`python -m bench.capacity_check`: what `redoubt plan` predicts for shapes of models, beside what they then do here.

The machine's rates are sampled before and after each measurement, and the best of them make the prediction: predicted
and measured are of the same run. The shapes have random weights; those of the fit (`bench.capacity_fit.MODELS`) are
named, as a prediction for them says less.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.capacity.demand import CapacityError
from app.capacity.shares import shares_of
from app.commands.plan_inputs import read_demand
from app.messages.failures import EngineError
from bench.capacity_fit import MODELS, Sample, bench_machine
from bench.common import OneLineParser, at_least, machine, print_result
from bench.engine import EngineBench
from bench.rates import Rates, best_rates, rates_json, sample_rates
from bench.work import CLOCKS, Work
from kernels import _native
from quant.conversion.shapes import SHAPES
from quant.conversion.synth import synth
from quant.errors import QuantError

WORKS: Final = (
    Work("prefill", 1, 512, 0),
    Work("decode", 1, 128, 16),
    Work("decode", 8, 128, 16),
    Work("decode", 32, 128, 16),
    Work("decode", 1, 2048, 16),
)
QUICK_WORKS: Final = (
    Work("prefill", 1, 256, 0),
    Work("decode", 1, 64, 8),
    Work("decode", 8, 64, 8),
    Work("decode", 1, 1024, 8),
)
AIM: Final = 0.15


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure. clock: of `bench.work.CLOCKS`."""

    threads: int
    repeats: int = 3
    works: tuple[Work, ...] = WORKS
    clock: str = "wall"


def _measured_s(folder: Path, works: Sequence[Work], options: Options) -> tuple[list[float], str]:
    """Seconds of each work, the median of its repeats after one that does not count; and the type of the pages."""
    bench = EngineBench(folder, threads=options.threads, kv_type="auto", works=works, clock=options.clock)
    taken: dict[Work, list[float]] = {work: [] for work in works}
    try:
        for _ in range(options.repeats + 1):
            for work in works:
                taken[work].append(bench.measure(work))
    finally:
        bench.close()
    return [statistics.median(taken[work][1:]) for work in works], str(bench.runner.model.kv_type)


def check_shape(shape: str, place: Path, options: Options) -> dict[str, Any]:
    """One shape: the model is made, measured and removed. Raises QuantError, EngineError, ValueError, OSError."""
    demand = read_demand(shape, None, None)
    works = [work for work in options.works if work.context_tokens + work.new_tokens < demand.context_tokens]
    folder = place / shape
    try:
        synth(shape, folder, progress=False)
        samples: list[Rates] = [sample_rates(options.threads)]
        seconds, kv_type = _measured_s(folder, works, options)
        samples.append(sample_rates(options.threads))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    limits = best_rates(samples)
    vendor = "intel" if _native.is_intel_cpu() else "amd"
    here = bench_machine("here", _native.default_tier(), vendor, rates_json([limits]), options.threads)
    shares, whose = shares_of(here.tier, vendor)
    rows = {}
    for work, taken_s in zip(works, seconds, strict=True):
        is_decode = work.kind == "decode"
        context = work.context_tokens + (work.new_tokens / 2 if is_decode else 0)
        step_s = taken_s / work.new_tokens if is_decode else taken_s
        sample = Sample(shape, work.name, demand, here, kv_type, work.kind, work.streams, context, step_s)
        predicted_s = sample.predicted_s(shares)
        rows[work.name] = {
            "predicted_tokens_per_s": round(work.tokens / (predicted_s * max(1, work.new_tokens)), 1),
            "measured_tokens_per_s": round(work.tokens / taken_s, 1),
            "predicted_over_measured": round(step_s / predicted_s, 3),
        }
    return {
        "in_the_fit": shape in {known for known, _, _ in MODELS.values()},
        "kv_type": kv_type,
        "limits": rates_json(samples),
        "shares": whose,
        "works": rows,
        "median_error": round(statistics.median(abs(row["predicted_over_measured"] - 1) for row in rows.values()), 3),
    }


def check(shapes: Sequence[str], options: Options, place: Path | None) -> dict[str, Any]:
    """Measures all shapes; the result is ready for JSON.

    Raises CapacityError for an unknown shape, and as `check_shape`.
    """
    for shape in shapes:
        if shape not in SHAPES:
            raise CapacityError(f"shape {shape!r} is not one of {', '.join(SHAPES)}")
    found = {}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        for shape in shapes:
            found[shape] = check_shape(shape, Path(folder), options)
            for name, row in found[shape]["works"].items():
                told = f"{row['predicted_tokens_per_s']:>9} predicted {row['measured_tokens_per_s']:>9} measured"
                print(f"{shape:<16}{name:<18}{told}  {row['predicted_over_measured']:.2f}", file=sys.stderr)
    rows = [row for each in found.values() for row in each["works"].values()]
    within = [row for row in rows if abs(row["predicted_over_measured"] - 1) <= AIM]
    return {
        **machine(),
        "threads": options.threads,
        "repeats": options.repeats,
        "clock": options.clock,
        "shapes": found,
        "works": len(rows),
        "works_within_15_percent": len(within),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m bench.capacity_check", description="Check `redoubt plan` on this machine.")
    parser.add_argument("--threads", type=at_least(1), required=True, help="compute threads")
    parser.add_argument(
        "--shapes", default="tinyllama-1.1b,llama3.2-1b,qwen3-1.7b", help="shapes, with commas (default %(default)s)"
    )
    parser.add_argument("--repeats", type=at_least(1), default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="smaller works, for a busy machine")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu: for one thread on a busy machine (default wall)"
    )
    parser.add_argument("--place", type=Path, help="folder for the models (default: the system's temporary folder)")
    parser.add_argument("--out", type=Path, help="a file for the JSON too")
    parsed: argparse.Namespace = parser.parse_args(arguments)
    errors = (CapacityError, QuantError, EngineError, ValueError, OSError)
    shapes = tuple(parsed.shapes.split(","))
    options = Options(parsed.threads, parsed.repeats, QUICK_WORKS if parsed.quick else WORKS, parsed.clock)
    return print_result(lambda: check(shapes, options, parsed.place), errors, indent=1, out=parsed.out)


if __name__ == "__main__":
    raise SystemExit(main())
