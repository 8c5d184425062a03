"""The cores that benches compute on, and how many threads they use unless told: the same for all engines.

Standard library only, with `app.workers.numa`: peers' processes import it too. Pins nothing itself.
"""

import os

from app.workers.numa import cpu_quota, numa_nodes


def pinned_cpus(threads: int) -> tuple[int, ...]:
    """The CPUs that so many pinned threads run on, of those that this process may use.

    One for each core, the first NUMA node's before the others'; the cores' further CPUs only after all cores.
    """
    allowed = sorted(os.sched_getaffinity(0))
    first = [cpu for node in numa_nodes(allowed) for cpu in node.cpus]
    return tuple([*first, *(cpu for cpu in allowed if cpu not in first)][:threads])


def node_cores() -> int:
    """Physical cores of the first NUMA node that this process may use."""
    return len(numa_nodes(sorted(os.sched_getaffinity(0)))[0].cpus)


def default_threads() -> int:
    """The compute threads of a bench that is not told: the first NUMA node's cores, within the container's quota."""
    cores = node_cores()
    return min(cores, cpu_quota() or cores)
