"""The machine's limits: two rates of pinned threads together, streaming reads from memory and multiply-adds.

On a shared machine they drift, so they are sampled again and again during a run and the best sample counts. Knows no
engine and no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.cores import pinned_cpus
from kernels import _native

READ_BYTES: Final = 128 << 20
"""Bytes of one sample of the read rate."""
COLD_BYTES: Final = 512 << 20
"""Memory that a sample goes through: several times any last-level cache, so that reads come from memory."""
READS: Final = 8


def best_cpu_s(times: Sequence[tuple[float, float]]) -> float:
    """The best call's CPU seconds, of (wall, CPU) seconds as `testing` returns them."""
    return min(cpu_s for _, cpu_s in times)


def time_reads(
    threads: int,
    size_bytes: int = READ_BYTES,
    *,
    repeats: int = READS,
    cold_bytes: int = COLD_BYTES,
    huge_pages: bool = True,
) -> list[tuple[float, float]]:
    """Streaming reads of `size_bytes` each, going round through `cold_bytes`.

    Returns the wall seconds of each, and the CPU seconds of its busiest thread.
    """
    return _native.time_read(size_bytes, repeats, cold_bytes, huge_pages, threads, pinned_cpus(threads))


def compute_peaks(threads: int) -> Mapping[str, float]:
    """Multiply-adds a second by instruction ("vnni_macs_per_s", ...); 0 for those that the CPU lacks.

    Bursts of some tens of milliseconds, of which the best counts: a limit. Under load that lasts a processor with many
    cores may be slower; `redoubt plan --machine this` measures that.
    """
    return _native.measure_compute(threads, pinned_cpus(threads))


@dataclass(frozen=True, slots=True)
class Rates:
    """One sample of both limits. macs_per_s is 0 where nothing could be measured."""

    read_bytes_per_s: float
    macs_per_s: float
    instruction: str
    """The instruction that macs_per_s counts."""


def sample_rates(threads: int) -> Rates:
    """Both limits, in about half a second.

    The multiply-adds are those of tdpbf16ps, of vpdpbusd where the CPU lacks it, of vpmaddubsw where it lacks both, and
    else of fp32. tdpbssd's rate is twice tdpbf16ps', but the sums of groups have to leave the tiles for it, and no
    engine comes near.
    """
    read_bytes_per_s = READ_BYTES / best_cpu_s(time_reads(threads))
    peaks = compute_peaks(threads)
    names = ("amx_bf16_macs_per_s", "vnni_macs_per_s", "maddubs_macs_per_s", "fma_fp32_macs_per_s")
    name = next(name for name in names if peaks[name])
    return Rates(read_bytes_per_s, peaks[name], name.partition("_macs")[0])


def best_rates(samples: Sequence[Rates]) -> Rates:
    """The best of each rate."""
    return Rates(
        max(rates.read_bytes_per_s for rates in samples),
        max(rates.macs_per_s for rates in samples),
        samples[0].instruction,
    )


def rates_json(samples: Sequence[Rates]) -> dict[str, Any]:
    """The best rates and all samples."""
    return {**asdict(best_rates(samples)), "samples": [asdict(rates) for rates in samples]}
