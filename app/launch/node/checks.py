"""Finds mistakes before a node joins its cluster, each with one line that says what to do.

Reads files, the processor's layout and limits, and tries ports. Starts nothing.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.launch.node.options import NodeOptions
from app.launch.node.roles import Cores, Role
from app.model_folder import missing_file
from app.sealing.sealed_model import is_sealed
from app.workers.numa import Slot, cpu_limit, numa_nodes


@dataclass(frozen=True, slots=True)
class NodeCores:
    """The cores that a node may use."""

    nodes: tuple[Slot, ...]
    """The NUMA nodes with their physical cores."""
    logical_cpus: int
    limit_cpus: float | None
    """The container's CPU limit in CPUs; None: no limit."""

    @property
    def count(self) -> int:
        """Number of physical cores, or fewer if the limit is lower."""
        cores = sum(len(node.cpus) for node in self.nodes)
        return cores if self.limit_cpus is None else max(1, min(cores, int(self.limit_cpus)))


def node_cores() -> NodeCores:
    allowed = sorted(os.sched_getaffinity(0))
    return NodeCores(tuple(numa_nodes(allowed)), len(allowed), cpu_limit())


def accepts_connections(address: str) -> bool:
    """Whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def mistake(options: NodeOptions, cores: NodeCores) -> str | None:
    """The first mistake that keeps the node from joining; None if there is none."""
    return next(_mistakes(options, cores), None)


def _mistakes(options: NodeOptions, cores: NodeCores) -> Iterator[str]:
    if options.role is Role.HEAD:
        if accepts_connections(options.head_address):
            yield (
                f"Something listens at {options.head_address} already, probably another head: "
                "a cluster has one. Stop the other one, or give this one an address of its own."
            )
        return
    for path in options.models:
        if (found := _model_mistake(path)) is not None:
            yield found
    if options.cores is Cores.EXCLUSIVE and (found := _core_mistake(cores)) is not None:
        yield found


def _model_mistake(path: Path) -> str | None:
    if not path.exists():
        return f"There is no model {path}: is the volume mounted, and is this the model's name on it?"
    if not path.is_dir():
        return _sealed_mistake(path)
    if (missing := missing_file(path)) is not None:
        return f"{path} is not a converted model: it has no {missing}. Make one with: redoubt convert SOURCE OUT"
    return None


def _sealed_mistake(path: Path) -> str | None:
    try:
        if is_sealed(path):
            return None
    except OSError as error:
        return f"{path} can't be read: {error.strerror}. Is it the device of the model, and may this user read it?"
    return f"{path} is neither a folder nor a sealed model. Make one with: redoubt seal MODEL OUT --key FILE"


def _core_mistake(cores: NodeCores) -> str | None:
    advice = "or start it with --cores shared if it need not be fast"
    if cores.limit_cpus is not None and cores.limit_cpus < cores.logical_cpus:
        return (
            f"This pod has no cores of its own: it may use {cores.limit_cpus:g} CPUs' time on {cores.logical_cpus} "
            "CPUs. Set requests equal to limits, in whole CPUs, on a node whose kubelet has the static CPU manager, "
            f"{advice}."
        )
    if len(cores.nodes) > 1:
        numbers = ", ".join(str(node.numa_node) for node in cores.nodes)
        return (
            f"This pod's cores are on several NUMA nodes ({numbers}), but a worker needs those of one. "
            f"Set the kubelet's topology manager to single-numa-node, {advice}."
        )
    return None
