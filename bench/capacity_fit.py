"""`python -m bench.capacity_fit RESULTS...`: fits the shares that `redoubt plan` expects, from comparisons' JSON.

Each RESULT is a file of `bench.compare` that has the machine's limits and our figures from the same run. For each tier
and vendor it finds the shares (`app.capacity.shares.Shares`) with the least sum of |log(predicted / measured)|, so that
a disturbed run counts as one outlier. Then it leaves each file out in turn, fits the rest and predicts it: that error
is what a machine outside the fit may expect. The same for each shape, but not for the only narrow one. Writes
`app/capacity/shares.toml`.

Left out: engines whose answers are of another type than the default, and works of files whose compute limit is of
another instruction than the tier's.
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from app.capacity.demand import NARROW_HIDDEN, Demand
from app.capacity.machine import Machine
from app.capacity.shares import SHARES_FILE, Shares
from app.capacity.step_time import StepTimes, decode_step, prompt_steps
from app.commands.plan_inputs import read_demand
from bench.common import OneLineParser, commit, print_result

MODELS: Final[Mapping[str, tuple[str, str, int]]] = {
    "embedded": ("smollm2-135m", "asym_int4", 32),
    "1.1b": ("tinyllama-1.1b", "sym_int4", 64),
    "7b": ("llama2-7b", "sym_int4", 64),
    "8b": ("llama3.1-8b", "sym_int4", 64),
}
"""Shape, type and group of the models of `bench.compare`."""
INSTRUCTIONS: Final = {
    "avx2": "maddubs", "avx_vnni": "maddubs", "avx512": "maddubs", "avx512_vnni": "vnni", "amx_int8": "amx_bf16",
}  # fmt: skip
_START: Final = Shares(0.8, 0.7, 0.65, 0.7, 0.4, 1.5, 2e-5, 2.0)
_LEAST: Final = Shares(0.2, 0.2, 0.1, 0.1, 0.05, 1.0, 1e-6, 1.0)
_MOST: Final = Shares(1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 2e-4, 8.0)
_PULL: Final = 0.02
"""How much a share's distance from where it starts counts, so that what no work measures stays there."""


@dataclass(frozen=True, slots=True)
class Sample:
    file: str
    work: str
    demand: Demand
    machine: Machine
    kv_type: str
    kind: str
    streams: int
    context_tokens: float
    seconds: float
    """Time of a decode step, or of the whole prompt."""

    def predicted_s(self, shares: Shares) -> float:
        """The time that these shares give."""
        times = StepTimes(self.demand, self.machine, shares, self.kv_type)
        if self.kind == "decode":
            return times.expected(decode_step(self.streams, self.context_tokens)).seconds
        return sum(times.expected(step).seconds for step in prompt_steps(round(self.context_tokens)))


def bench_machine(name: str, tier: str, vendor: str, limits: Mapping[str, Any], threads: int) -> Machine:
    """The machine of a bench, as far as step times need it."""
    read, macs = limits["read_bytes_per_s"], limits["macs_per_s"]
    return Machine(
        name, tier, vendor, 1, threads, 1, read, macs, read, macs, limits["instruction"], is_measured=True, source=name
    )


def samples_of(path: Path) -> list[Sample]:
    """Reads our engine's samples from a result. Raises ValueError naming the file if it is no comparison's, OSError."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(result, dict) or not {"limits", "works", "engines", "model", "cpu"} <= set(result):
        raise ValueError(f"{path} is no result of `redoubt bench compare`")
    if result["model"] not in MODELS:
        return []
    demand = read_demand(*MODELS[result["model"]])
    samples = []
    for name, engine in result["engines"].items():
        tier = re.search(r"tier (\w+)", engine["settings"])
        kv_type = re.search(r"(\w+) KV", engine["settings"])
        if not name.startswith("redoubt") or "int8 answers" in engine["settings"] or tier is None or kv_type is None:
            continue
        if result["limits"]["instruction"] != INSTRUCTIONS.get(tier[1]):
            continue
        vendor = "intel" if "Intel" in result["cpu"] else "amd"
        machine = bench_machine(result["cpu"], tier[1], vendor, result["limits"], result["threads"])
        for work_name, measured in engine["results"].items():
            work = result["works"][work_name]
            is_decode = work["kind"] == "decode"
            tokens = work["streams"] if is_decode else work["context_tokens"]
            context = work["context_tokens"] + (work["new_tokens"] / 2 if is_decode else 0)
            samples.append(
                Sample(
                    path.name,
                    f"{name} {work_name}",
                    demand,
                    machine,
                    kv_type[1],
                    work["kind"],
                    work["streams"],
                    context,
                    tokens / measured["median"],
                )
            )
    return samples


def fitted(samples: Sequence[Sample]) -> Shares:
    """The shares with the least error: a pattern search in the logarithms, which needs no library."""
    names = list(asdict(_START))
    best, step = _START, 0.2
    best_error = _error(best, samples)
    while step > 0.005:
        moved = False
        for name in names:
            for factor in (math.exp(step), math.exp(-step)):
                value = min(max(getattr(best, name) * factor, getattr(_LEAST, name)), getattr(_MOST, name))
                trial = replace(best, **{name: value})
                if (error := _error(trial, samples)) < best_error - 1e-9:
                    best, best_error, moved = trial, error, True
        if not moved:
            step /= 2
    return Shares(**{name: float(f"{getattr(best, name):.3g}") for name in names})


def _error(shares: Shares, samples: Sequence[Sample]) -> float:
    total = sum(abs(math.log(sample.predicted_s(shares) / sample.seconds)) for sample in samples)
    return total + _PULL * sum(abs(math.log(getattr(shares, name) / getattr(_START, name))) for name in asdict(_START))


def errors(shares: Shares, samples: Sequence[Sample]) -> list[float]:
    """|predicted / measured - 1| of each."""
    return [abs(sample.predicted_s(shares) / sample.seconds - 1) for sample in samples]


def fit(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Fits, checks and writes; the result is ready for JSON. Raises ValueError, OSError."""
    samples = [sample for path in paths for sample in samples_of(path)]
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(f"{sample.machine.tier}-{sample.machine.vendor}", []).append(sample)
    if not groups:
        raise ValueError("none of these files has figures of ours beside the limits of the same run")
    tiers: dict[str, Shares] = {}
    report: dict[str, Any] = {}
    for name, group in sorted(groups.items()):
        tiers[name] = fitted(group)
        files = sorted({sample.file for sample in group})
        left_out: list[float] = []
        for file in files if len(files) > 1 else []:
            others = fitted([sample for sample in group if sample.file != file])
            left_out += errors(others, [sample for sample in group if sample.file == file])
        unseen: dict[str, float] = {}
        for shape in sorted({sample.demand.name for sample in group if sample.demand.hidden >= NARROW_HIDDEN}):
            others = fitted([sample for sample in group if sample.demand.name != shape])
            own = errors(others, [sample for sample in group if sample.demand.name == shape])
            unseen[shape] = round(statistics.median(own), 3)
        inside = errors(tiers[name], group)
        report[name] = {
            "shares": asdict(tiers[name]),
            "files": files,
            "works": len(group),
            "median_error": round(statistics.median(inside), 3),
            "median_error_left_out": round(statistics.median(left_out), 3) if left_out else None,
            "worst_error_left_out": round(max(left_out), 3) if left_out else None,
            "median_error_of_unseen_shape": unseen,
        }
    out.write_text(_toml(tiers, report), encoding="utf-8")
    return {"commit": commit(), "out": str(out), "tiers": report}


def _toml(tiers: Mapping[str, Shares], report: Mapping[str, Any]) -> str:
    lines = [
        "# Written by `python -m bench.capacity_fit`. What each share means: app/capacity/shares.py.",
        "",
        f"measured_types = {json.dumps(sorted({qtype for _, qtype, _ in MODELS.values()}))}",
        'measured_on = "two threads on two cores of shared machines; no machine with many cores was measured"',
    ]
    for name, shares in tiers.items():
        told = report[name]
        outside = told["median_error_left_out"]
        left_out = "" if outside is None else f", {outside:.0%} for a file that is left out of the fit"
        lines += ["", f"# {told['works']} works of {', '.join(told['files'])}."]
        lines += [f"# Error of a work, median: {told['median_error']:.0%}{left_out}."]
        for shape, error in told["median_error_of_unseen_shape"].items():
            lines += [f"# {shape}, predicted by the other shapes alone: {error:.0%}."]
        lines += [f"[tiers.{name}]"]
        lines += [f"{key} = {value!r}" for key, value in asdict(shares).items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(
        prog="python -m bench.capacity_fit", description="Fit the shares that `redoubt plan` expects."
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT", help="files of `redoubt bench compare`")
    parser.add_argument("--out", type=Path, default=SHARES_FILE, help="the file to write (default: %(default)s)")
    parsed: argparse.Namespace = parser.parse_args(arguments)
    return print_result(lambda: fit(parsed.results, parsed.out), (ValueError, OSError), indent=1)


if __name__ == "__main__":
    raise SystemExit(main())
