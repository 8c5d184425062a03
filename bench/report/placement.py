"""Which cores and which memory an engine gets; an engine in a process of its own that answers one request at a time.

A process' memory policy can't be taken back for what is loaded, so every placement is a new process
(`bench.report.answers`). Does not know what the times are used for.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.workers.numa import Slot, spanning_slot, thread_places
from bench.common import ROOT

TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores of the threads, one each, and the NUMA nodes that memory comes from."""

    name: str
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    """Empty: wherever the kernel takes it. One: from that node alone. Several: pages take turns."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of random tokens."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Answers:
    """Measurements of a process."""

    load_s: float
    times_s: tuple[tuple[tuple[float, ...], ...], ...]
    """Seconds from the request to each of its tokens, by ask and round, without the first round, a warm-up."""


def on_one_node(nodes: Sequence[Slot], threads: int, *, may_bind: bool) -> Placement:
    """Placement of a worker: the first node's cores, and its memory if this process may bind it."""
    cpus, _ = thread_places(nodes[0], threads)
    return Placement("one node", cpus, (nodes[0].numa_node,) if may_bind else ())


def three_ways(nodes: Sequence[Slot], threads: int) -> tuple[Placement, Placement, Placement]:
    """A node's cores with its memory, with another node's, and cores and memory of all nodes; as many threads in each.

    Raises ValueError with fewer than two nodes.
    """
    if len(nodes) < 2:
        raise ValueError("one NUMA node can't be bound in three ways")
    near, far = nodes[0], nodes[1]
    threads = min(threads, len(near.cpus))
    cpus, _ = thread_places(near, threads)
    spread, _ = thread_places(spanning_slot(nodes), threads)
    return (
        Placement("cores and memory of one node", cpus, (near.numa_node,)),
        Placement("cores of one node, memory of another", cpus, (far.numa_node,)),
        Placement("cores and memory of all nodes", spread, tuple(node.numa_node for node in nodes)),
    )


def command(model: Path, placement: Placement, *, weight_memory: str) -> list[str]:
    """The command line of the process."""
    line = [sys.executable, "-m", "bench.report.answers", str(model), "--weight-memory", weight_memory]
    line += ["--cpus", ",".join(map(str, placement.cpus))]
    if placement.memory_nodes:
        line += ["--memory-nodes", ",".join(map(str, placement.memory_nodes))]
    return line


def answers(
    model: Path, placement: Placement, asks: Sequence[Ask], *, repeats: int, weight_memory: str = "auto"
) -> Answers:
    """Measures in a new process. Raises RuntimeError with its last line if it fails, subprocess.TimeoutExpired."""
    job = {"asks": [[ask.prompt_tokens, ask.new_tokens] for ask in asks], "repeats": repeats}
    done = subprocess.run(
        command(model, placement, weight_memory=weight_memory),
        input=json.dumps(job), capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"the engine's process ended with status {done.returncode}: {last}")
    found = json.loads(done.stdout)
    times = tuple(tuple(tuple(times) for times in rounds) for rounds in found["times_s"])
    return Answers(found["load_s"], times)
