"""Times attention, row operations and sampling, and compares them with the machine's limits in the same run.

A time is the CPU time of the busiest pinned thread, the best of several passes: the time on otherwise idle cores.
Shares are of the fp32 multiply-add peak and of the streaming read rate of the same threads. `share_of_limit` is the
larger of the two, which can't exceed 1 for floats; integers are multiplied at twice that peak or more. Knows no model.

    python -m bench.ops --json
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from bench.common import json_text, machine
from bench.cores import pinned_cpus
from bench.rates import READ_BYTES, best_cpu_s, compute_peaks, time_reads
from bench.testing_kernels import testing
from kernels import _native
from kernels._native import Sampler

KV_BYTES = {"int16": 2, "bf16": 2, "fp32": 4, "int8": 1}
SCALE_BYTES = {"int16": 2, "int8": 2}
"""The bytes of the scale of one head's key or value of one token."""
VOCABULARY = 151_936


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One case of attention; `tasks` are (sequence, kv head) pairs with pages of their own."""

    tasks: int
    query_tokens: int
    group_heads: int
    context_before: int
    head_dim: int
    kv_type: str

    def macs(self) -> int:
        """Multiply-adds of scores and output, causal."""
        keys = sum(range(self.context_before + 1, self.context_before + self.query_tokens + 1))
        return 2 * self.tasks * self.group_heads * keys * self.head_dim

    def kv_bytes(self) -> int:
        """Bytes of keys and values, each read once."""
        keys = self.context_before + self.query_tokens
        each = self.head_dim * KV_BYTES[self.kv_type] + SCALE_BYTES.get(self.kv_type, 0)
        return 2 * self.tasks * keys * each


@dataclass(frozen=True, slots=True)
class Limits:
    """The rates of all threads together."""

    fma_fp32_macs_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """One timed case. Shares are None where the limit does not apply."""

    op: str
    shape: dict[str, int | float | str]
    tier: str
    seconds: float
    share_of_fma_peak: float | None = None
    share_of_read_rate: float | None = None
    share_of_limit: float | None = None


def attention_shapes() -> list[AttentionShape]:
    """Prefill of 512 tokens up to position 4,096 of one sequence, and decode with long contexts read from memory."""
    prefill = [
        AttentionShape(2, 512 // group_heads, group_heads, 4096 - 512 // group_heads, head_dim, kv_type)
        for head_dim in (64, 128)
        for kv_type in KV_BYTES
        for group_heads in (1, 4, 8)
    ]
    decode = [
        AttentionShape(16, 1, group_heads, 8191, head_dim, kv_type)
        for head_dim in (64, 128)
        for kv_type in KV_BYTES
        for group_heads in (1, 3, 4, 8)
    ]
    return prefill + decode


ROW_SHAPES = (
    ("rms_norm", 512, 576),
    ("rms_norm", 512, 4096),
    ("layer_norm", 512, 4096),
    ("silu", 512, 1536),
    ("silu", 512, 11_008),
    ("gelu_tanh", 512, 11_008),
    ("gelu_erf", 512, 11_008),
    ("relu2", 512, 11_008),
    ("swiglu_oai", 512, 2880),
    ("add_scaled", 512, 4096),
    ("scale", 512, 4096),
    ("softcap", 8, 256_000),
    ("rope", 8192, 64),
    ("rope", 8192, 128),
    ("write_kv", 4096, 64),
    ("write_kv", 4096, 128),
)
SAMPLING: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1},
    {"temperature": 2.0, "top_p": 0.999},
)


def measure_limits(threads: int) -> Limits:
    """Both limits, best of several passes."""
    macs = max(compute_peaks(threads)["fma_fp32_macs_per_s"] for _ in range(3))
    return Limits(macs, READ_BYTES / best_cpu_s(time_reads(threads)))


def time_attention(shape: AttentionShape, tier: str, threads: int, repeats: int, limits: Limits) -> Result:
    """One case of attention, and its shares."""
    passes = testing.time_attention(
        shape.tasks,
        shape.query_tokens,
        shape.group_heads,
        shape.context_before,
        shape.head_dim,
        shape.kv_type,
        repeats,
        threads,
        pinned_cpus(threads),
        tier,
    )
    seconds = best_cpu_s(passes)
    fma = shape.macs() / seconds / limits.fma_fp32_macs_per_s
    read = shape.kv_bytes() / seconds / limits.read_bytes_per_s
    return Result("attention", asdict(shape), tier, seconds, fma, read, max(fma, read))


def time_rows(op: str, rows: int, n: int, tier: str, threads: int, repeats: int) -> Result:
    """One row operation; its data is in the caches, as it is after the previous layer."""
    passes = testing.time_rows(op, rows, n, repeats, threads, pinned_cpus(threads), tier)
    return Result(op, {"rows": rows, "n": n}, tier, best_cpu_s(passes))


def time_sampling(options: dict[str, float], repeats: int) -> Result:
    """One sample from a vocabulary of 150 thousand, called from Python, including a copy of the logits."""
    logits = np.random.default_rng(0).standard_normal(VOCABULARY, np.float32) * np.float32(2.5)
    sampler = Sampler(vocab_size=VOCABULARY, prompt=range(500), **options)  # type: ignore[arg-type]
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        sampler.sample(logits)
        seconds.append(time.thread_time() - start)
    return Result("sample", {"vocabulary": VOCABULARY, **options}, _native.default_tier(), min(seconds))


def describe(result: Result) -> str:
    shares = (result.share_of_fma_peak, result.share_of_read_rate, result.share_of_limit)
    columns = "".join("        -" if share is None else f"{share:9.1%}" for share in shares)
    shape = " ".join(f"{name}={value}" for name, value in result.shape.items())
    return f"{result.op:12}{result.tier:12}{result.seconds * 1e6:12.1f} us{columns}  {shape}"


def main() -> None:
    """Prints a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--threads", type=int, default=1, help="pinned threads, one a CPU")
    parser.add_argument("--tier", default=_native.default_tier(), choices=_native.available_tiers())
    parser.add_argument("--repeats", type=int, default=10, help="passes of each case; the best counts")
    parser.add_argument("--only", default="", help="cases whose operation begins so")
    arguments = parser.parse_args()
    tier, threads, repeats = arguments.tier, arguments.threads, arguments.repeats

    limits = measure_limits(threads)
    results: list[Result] = []

    def report(result: Result) -> None:
        results.append(result)
        if not arguments.json:
            print(describe(result), flush=True)

    if not arguments.json:
        print(f"{'op':12}{'tier':12}{'time':>15}{'of FMA':>9}{'of read':>9}{'of limit':>9}  shape")
    for shape in attention_shapes():
        if "attention".startswith(arguments.only):
            report(time_attention(shape, tier, threads, repeats, limits))
    for op, rows, n in ROW_SHAPES:
        if op.startswith(arguments.only):
            report(time_rows(op, rows, n, tier, threads, repeats))
    for options in SAMPLING:
        if "sample".startswith(arguments.only):
            report(time_sampling(options, 5 * repeats))
    if arguments.json:
        report_object = {
            **machine(),
            "threads": threads,
            "limits": asdict(limits),
            "results": [asdict(result) for result in results],
        }
        sys.stdout.write(json_text(report_object))


if __name__ == "__main__":
    main()
