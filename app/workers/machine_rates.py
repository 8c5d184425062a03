"""Measures this machine for capacity planning: read and multiply-add rates of one worker's cores.

Takes about two seconds, and for that time all cores of a worker. Knows no model and no engine.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.capacity.demand import CapacityError
from app.capacity.machine import Machine
from app.workers.machine_memory import available_memory_bytes, machine_memory_bytes
from app.workers.numa import Slot, cpu_quota, numa_nodes
from kernels import _native

_INSTRUCTIONS: Final[Mapping[str, str]] = {
    "avx2": "maddubs", "avx_vnni": "maddubs", "avx512": "maddubs", "avx512_vnni": "vnni", "amx_int8": "amx_bf16",
}  # fmt: skip
"""By tier, the instruction whose rate the capacity model's shares were fitted to."""
_COLD_BYTES_PER_CORE: Final = 128 << 20
_LEAST_COLD_BYTES: Final = 512 << 20
"""How much memory is read through: several times the last-level cache, of which a core has up to 12 MB."""
_COLD_SHARE: Final = 0.25
"""The most of the available memory that is used."""
_CACHE_BYTES_PER_CORE: Final = 24 << 20
_LEAST_CACHE_BYTES: Final = 128 << 20
"""With less memory than this, reads come partly from caches."""
_READS: Final = 9
_READS_OF_COLD: Final = 4
"""The memory has this many parts; each read takes the next one."""
_COMPUTE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class NodeRates:
    """Rates of one worker's cores together."""

    read_bytes_per_s: float
    macs_per_s: float
    """Sustained multiply-adds."""
    best_macs_per_s: float
    """Multiply-adds in a short burst, at a higher clock."""


def this_machine(
    measure: Callable[[Sequence[int], str], NodeRates] | None = None,
    nodes: Sequence[Slot] | None = None,
    quota: int | None = None,
) -> Machine:
    """Measures this machine with a worker's threads on the first NUMA node; other nodes count as equal.

    measure: called with (CPUs, instruction). nodes, quota: None: this machine's, and the container's CPUs. Raises
    CapacityError if rates can't be measured, OSError.
    """
    tier = _native.default_tier()
    if tier not in _INSTRUCTIONS:
        raise CapacityError(f"this machine cannot be measured: it needs AVX2, and the kernels use {tier!r}")
    nodes = nodes or numa_nodes(sorted(os.sched_getaffinity(0)))
    quota = quota or cpu_quota()
    workers = min(len(nodes), quota or len(nodes))
    cores = min(min(len(node.cpus) for node in nodes), (quota or 1 << 30) // workers)
    rates = (measure or measured_rates)(nodes[0].cpus[:cores], _INSTRUCTIONS[tier])
    within = f", for the container's CPU quota is {quota}" if quota and quota < sum(len(n.cpus) for n in nodes) else ""
    return Machine(
        name=_native.cpu_model(),
        tier=tier,
        vendor=this_vendor(),
        nodes=workers,
        cores_per_node=cores,
        memory_bytes=machine_memory_bytes(),
        read_bytes_per_s=rates.read_bytes_per_s,
        macs_per_s=rates.macs_per_s,
        best_read_bytes_per_s=rates.read_bytes_per_s,
        best_macs_per_s=max(rates.macs_per_s, rates.best_macs_per_s),
        instruction=_INSTRUCTIONS[tier],
        is_measured=True,
        source=f"measured here with {cores} threads on node {nodes[0].numa_node}{within}; multiply-adds for"
        f" {_COMPUTE_S:g} s, and the best possible in a burst",
    )


def this_vendor() -> str:
    """The processor's vendor, one of `app.capacity.machine.VENDORS`. All but Intel count as AMD."""
    return "intel" if _native.is_intel_cpu() else "amd"


def cold_bytes(threads: int, available_bytes: int) -> int:
    """How much memory to read through, so that reads come from memory and not from caches.

    Raises CapacityError if the machine has too little left for that.
    """
    wanted = max(_LEAST_COLD_BYTES, threads * _COLD_BYTES_PER_CORE)
    allowed = int(available_bytes * _COLD_SHARE)
    least = max(_LEAST_CACHE_BYTES, threads * _CACHE_BYTES_PER_CORE)
    if allowed < least:
        raise CapacityError(
            f"too little memory is left to measure reads: {available_bytes / 1e9:.1f} GB are available, and"
            f" {least / _COLD_SHARE / 1e9:.1f} GB must be, to go beyond the caches with a quarter of them; free memory,"
            " or name a machine of the table (--machine)"
        )
    return min(wanted, allowed)


def measured_rates(cpus: Sequence[int], instruction: str) -> NodeRates:
    """Measures the best of several reads, because other programs only slow them, and half a second of multiply-adds."""
    threads = len(cpus)
    read_bytes = cold_bytes(threads, available_memory_bytes()) // _READS_OF_COLD
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        times = _native.time_read(read_bytes, _READS, _READS_OF_COLD * read_bytes, True, threads, cpus)
        burst = _native.measure_compute(threads, cpus)[f"{instruction}_macs_per_s"]
        lasting = _native.sustained_macs_per_s(instruction, _COMPUTE_S, threads, cpus)
    finally:
        os.sched_setaffinity(0, before)
    return NodeRates(read_bytes / min(cpu_s for _, cpu_s in times), lasting, burst)
