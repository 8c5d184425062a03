"""Divides the machine's NUMA nodes into slots, the cores for one worker process each.

`app.workers.core_claims` assigns slots to workers. Reads /sys and /proc only; the native engine binds memory.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSFS = Path("/sys/devices/system")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Slot:
    """Cores for one worker, on one NUMA node or on several."""

    numa_node: int
    """The node, or the first of several nodes."""
    cpus: tuple[int, ...]
    """One logical CPU per physical core, ascending on each node."""
    cpu_nodes: tuple[int, ...] = ()
    """The node of each CPU, if there are several nodes; empty: all CPUs are on `numa_node`."""


def parse_cpu_list(text: str) -> list[int]:
    """Parses the kernel's list format: "0-3,8" is [0, 1, 2, 3, 8]."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def numa_nodes(allowed_cpus: Sequence[int], sysfs: Path = _SYSFS) -> list[Slot]:
    """The machine's nodes with their physical cores among `allowed_cpus`; one node if /sys has none."""
    allowed = set(allowed_cpus)
    nodes: list[Slot] = []
    for folder in sorted(sysfs.glob("node/node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        cpus = [cpu for cpu in parse_cpu_list((folder / "cpulist").read_text()) if cpu in allowed]
        if cpus:
            nodes.append(Slot(int(folder.name.removeprefix("node")), _one_per_core(cpus, sysfs)))
    return nodes or [Slot(0, _one_per_core(sorted(allowed), sysfs))]


def worker_slots(nodes: Sequence[Slot], cpus_per_worker: int | None) -> list[Slot]:
    """Divides the nodes into slots of `cpus_per_worker` cores; None: each node is a slot.

    Raises ValueError if no node has that many cores.
    """
    if cpus_per_worker is None:
        return list(nodes)
    slots = [
        Slot(node.numa_node, node.cpus[first : first + cpus_per_worker])
        for node in nodes
        for first in range(0, len(node.cpus) - cpus_per_worker + 1, cpus_per_worker)
    ]
    if not slots:
        largest = max(len(node.cpus) for node in nodes)
        raise ValueError(f"worker.cpus_per_worker is {cpus_per_worker}, but the largest node has {largest} cores")
    return slots


def core_share(node_cores: Sequence[int], workers: int) -> int | None:
    """How many cores each of a machine's workers gets; None: every worker has a whole node.

    node_cores: the number of cores of each node. Raises ValueError if there are more workers than cores.
    """
    if workers <= len(node_cores):
        return None
    share = min(node_cores) // -(-workers // len(node_cores))
    if share == 0:
        raise ValueError(f"{workers} workers are more than the {sum(node_cores)} cores of this machine")
    return share


def spanning_slot(nodes: Sequence[Slot]) -> Slot:
    """Makes one slot of all nodes' cores."""
    if len(nodes) == 1:
        return nodes[0]
    cpus = tuple(cpu for node in nodes for cpu in node.cpus)
    return Slot(nodes[0].numa_node, cpus, tuple(node.numa_node for node in nodes for _ in node.cpus))


def thread_places(slot: Slot, threads: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs of a worker's threads, spread evenly over the slot's nodes, and their nodes if there are several."""
    if not slot.cpu_nodes:
        return slot.cpus[:threads], ()
    ranked: list[tuple[int, int, int]] = []  # (rank on its node, node, cpu)
    seen = Counter[int]()
    for node, cpu in zip(slot.cpu_nodes, slot.cpus, strict=True):
        ranked.append((seen[node], node, cpu))
        seen[node] += 1
    chosen = sorted((node, cpu) for _, node, cpu in sorted(ranked)[:threads])
    return tuple(cpu for _, cpu in chosen), tuple(node for node, _ in chosen)


def cpu_limit(limit: Path = _CGROUP_LIMIT) -> float | None:
    """The container's CPU limit in CPUs; None without a limit."""
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def cpu_quota(limit: Path = _CGROUP_LIMIT) -> int | None:
    """The container's CPU limit in whole CPUs, at least 1; None without a limit."""
    cpus = cpu_limit(limit)
    return None if cpus is None else max(1, int(cpus))


def pin_this_thread(slot: Slot) -> None:
    """Pins the calling thread, and threads that it starts later, to the slot's cores."""
    os.sched_setaffinity(0, slot.cpus)


def _one_per_core(cpus: Sequence[int], sysfs: Path) -> tuple[int, ...]:
    """Returns the first logical CPU of each core: one thread keeps a core's units busy."""
    first_of_core: dict[str, int] = {}
    for cpu in cpus:
        siblings = sysfs / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        core = siblings.read_text().strip() if siblings.exists() else str(cpu)
        first_of_core.setdefault(core, cpu)
    return tuple(first_of_core.values())
