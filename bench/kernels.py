"""Times the linear kernels, and compares them with the machine's limits in the same run.

    python -m bench.kernels --json

- A time is the CPU time of the busiest pinned thread, the best of several calls: a call's time on otherwise idle cores.
- There are two limits. One is the rate of streaming reads of as many bytes as the weights have, measured between the
  batches; the best one counts, because it drifts on shared machines. The other is the peak rate of multiply-adds: for
  int8 activations of vpdpbusd, of tdpbssd (AMX tier) or, in tiers without VNNI, of vpmaddubsw on 256 bits; of tdpbf16ps
  for bf16; or of fp32 FMA.
- `share_of_limit` is the larger of the two minimum times over the measured time. Where no compute peak is known, it is
  the share of the read rate.
- Weights are read from memory and not from a cache: calls cycle through copies of the matrix.

Knows no model: the matrices are those of `kernel_cases`, which the tests use too.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bench.common import OneLineParser, json_text, machine, number_list
from bench.cores import pinned_cpus
from bench.kernel_cases import MODEL_CASES, ODD_CASES, LinearCase, make_weights, matrix_of
from bench.rates import best_cpu_s, compute_peaks, time_reads
from bench.testing_kernels import testing
from kernels import _native

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 512)
COLD_BYTES = 256 << 20
"""Several times the last-level cache of most machines; --cold-mib for others."""
INT8_PEAKS = {"avx2": "maddubs_macs_per_s", "avx512": "maddubs_macs_per_s", "amx_int8": "amx_int8_macs_per_s"}
"""The peak of int8 by tier, where it is not that of vpdpbusd."""


@dataclass(frozen=True, slots=True)
class Setup:
    threads: int
    tier: str
    cold_bytes: int
    huge_pages: bool
    seconds: float  # about, of timed calls per case and batch


@dataclass(frozen=True, slots=True)
class Result:
    """One case at one batch. Rates are of all threads together; a share is None where its limit is unknown."""

    case: str
    activations: str
    batch: int
    tier: str
    seconds: float
    median_seconds: float
    read_gb_per_s: float
    gmacs_per_s: float
    share_of_read_rate: float
    share_of_compute_peak: float | None
    share_of_limit: float
    tokens_over_batch_1: float | None  # rows a second, relative to one row


def read_rate(case_bytes: int, setup: Setup) -> float:
    """The rate of streaming reads of `case_bytes` from memory, in bytes a second."""
    repeats = max(5, min(200, setup.cold_bytes * 2 // case_bytes))
    times = time_reads(
        setup.threads, case_bytes, repeats=repeats, cold_bytes=setup.cold_bytes, huge_pages=setup.huge_pages
    )
    return case_bytes / best_cpu_s(times)


def time_case(
    case: LinearCase, activations: str, batches: Sequence[int], setup: Setup, peaks: Mapping[str, float]
) -> list[Result]:
    """One matrix at every batch."""
    matrix = matrix_of(case, make_weights(case, np.random.default_rng(0)))
    int8_peak = INT8_PEAKS.get(setup.tier, "vnni_macs_per_s")
    peak = peaks[{"fp32": "fma_fp32_macs_per_s", "bf16": "amx_bf16_macs_per_s"}.get(activations, int8_peak)]
    reads = []
    times: dict[int, list[float]] = {}
    for batch in batches:
        reads.append(read_rate(matrix.nbytes, setup))
        repeats = 3
        while True:  # a few calls first, then as many as fit in the time
            calls = testing.time_linear(
                matrix,
                activations,
                batch,
                repeats,
                setup.cold_bytes,
                setup.huge_pages,
                setup.threads,
                pinned_cpus(setup.threads),
                setup.tier,
            )
            affordable = int(setup.seconds / best_cpu_s(calls))
            if repeats > 3 or affordable <= 3:
                break
            repeats = min(affordable, 200)
        times[batch] = sorted(cpu_s for _, cpu_s in calls)
    reads.append(read_rate(matrix.nbytes, setup))
    return [_result(case, activations, batch, times, matrix.nbytes, max(reads), peak, setup) for batch in batches]


def _result(
    case: LinearCase,
    activations: str,
    batch: int,
    times: dict[int, list[float]],
    case_bytes: int,
    read_bytes_per_s: float,
    peak_macs_per_s: float,
    setup: Setup,
) -> Result:
    seconds = times[batch][0]
    macs = batch * case.rows * case.cols * (2 if activations == "int8_two_terms" else 1)
    of_read = case_bytes / seconds / read_bytes_per_s
    of_peak = macs / seconds / peak_macs_per_s if peak_macs_per_s else None
    return Result(
        case.name,
        activations,
        batch,
        setup.tier,
        seconds,
        times[batch][len(times[batch]) // 2],
        case_bytes / seconds / 1e9,
        macs / seconds / 1e9,
        of_read,
        of_peak,
        max(of_read, of_peak or 0.0),
        batch * times[1][0] / seconds if 1 in times else None,
    )


def describe(result: Result) -> str:
    peak = "       -" if result.share_of_compute_peak is None else f"{result.share_of_compute_peak:8.1%}"
    over = "      -" if result.tokens_over_batch_1 is None else f"{result.tokens_over_batch_1:6.2f}x"
    return (
        f"{result.case:26}{result.activations:15}{result.batch:5}{result.seconds * 1e3:10.3f} ms"
        f"{result.read_gb_per_s:8.1f}{result.gmacs_per_s:9.1f}{result.share_of_read_rate:9.1%}{peak}"
        f"{result.share_of_limit:9.1%} {over}"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = OneLineParser(
        prog="redoubt bench kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--threads", type=int, default=cores, help="pinned threads, one a CPU (default: all)")
    parser.add_argument("--tier", default=_native.default_tier(), choices=testing.linear_tiers())
    parser.add_argument("--batch", type=number_list, default=BATCHES, help="rows of activations, with commas")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--odd", action="store_true", help="the tests' odd shapes too")
    parser.add_argument("--two-terms", action="store_true", help="int8 activations of two terms too")
    parser.add_argument("--fp32-activations", action="store_true", help="fp32 activations for integer weights too")
    parser.add_argument("--ordinary-pages", action="store_true", help="weights in 4 KiB pages, not in huge ones")
    parser.add_argument("--cold-mib", type=int, default=COLD_BYTES >> 20, help="memory that calls cycle through")
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each case and batch, about")
    options = parser.parse_args(arguments)
    if not 1 <= options.threads <= cores:
        parser.error(f"--threads: not in 1 .. {cores}, the CPUs of this process")
    if options.cold_mib < 0 or options.seconds < 0:
        parser.error("--cold-mib, --seconds: out of range")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table, or with --json one object."""
    options = parse(arguments)
    setup = Setup(options.threads, options.tier, options.cold_mib << 20, not options.ordinary_pages, options.seconds)
    peaks = compute_peaks(setup.threads)
    cases = [case for case in MODEL_CASES + (ODD_CASES if options.odd else ()) if options.only in case.name]
    if not options.json:
        print(f"{_native.cpu_model()}, {setup.tier}, {setup.threads} threads")
        print({name: f"{rate / 1e9:.1f} G" for name, rate in peaks.items()})
        print(f"{'matrix':26}{'x':15}{'rows':>5}{'time':>13}{'GB/s':>8}{'GMAC/s':>9}  of read of peak of limit")
    results: list[Result] = []
    for case in cases:
        kinds = ["int8"] if case.is_integer else ["fp32"]
        kinds += ["int8_two_terms"] if case.is_integer and options.two_terms else []
        kinds += ["bf16"] if case.is_integer and setup.tier == "amx_int8" else []
        kinds += ["fp32"] if case.is_integer and options.fp32_activations else []
        for activations in kinds:
            timed = time_case(case, activations, options.batch, setup, peaks)
            results += timed
            if not options.json:
                print("\n".join(describe(result) for result in timed), flush=True)
    if options.json:
        report = {
            **machine(),
            **asdict(setup),
            "peaks": peaks,
            "results": [asdict(result) for result in results],
        }
        sys.stdout.write(json_text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
