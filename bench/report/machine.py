"""The section about the machine: its parts, and what they reach at most."""

import os
from collections.abc import Mapping
from typing import Any

from bench.common import memory_bytes
from bench.report.section import Result, Section, Setup
from bench.report.texts import number
from bench.report.view import Table, View
from kernels import _native

_SAMPLES = 3


def measure(setup: Setup) -> Result:
    """Lists the machine's parts, and the best of some samples of both rates."""
    result: Result = {
        "cpu": _native.cpu_model(),
        "tier": _native.default_tier(),
        "logical_cpus": len(os.sched_getaffinity(0)),
        "threads": setup.options.threads,
        "nodes": [{"node": node.numa_node, "cores": len(node.cpus)} for node in setup.nodes],
        "memory_bytes": memory_bytes("/proc/meminfo", "MemTotal"),
        "memory_available_bytes": memory_bytes("/proc/meminfo", "MemAvailable"),
        "load_average": os.getloadavg()[0],
    }
    try:
        from bench.rates import best_rates, rates_json, sample_rates
    except SystemExit as error:  # a wheel has no kernels to measure them with
        return result | {"rates": None, "why_no_rates": str(error)}
    samples = [sample_rates(setup.options.threads) for _ in range(_SAMPLES)]
    assert best_rates(samples).read_bytes_per_s > 0
    return result | {"rates": rates_json(samples)}


def view(result: Mapping[str, Any]) -> View:
    """A table of facts."""
    nodes, rates = result["nodes"], result["rates"]
    cores = sum(node["cores"] for node in nodes)
    shape = f"{len(nodes)} of {nodes[0]['cores']} cores" if len(nodes) > 1 else "1"
    rows = [
        ["processor", result["cpu"]],
        ["instructions that the kernels use", result["tier"]],
        ["cores", f"{cores} ({result['logical_cpus']} logical CPUs that this process may use)"],
        ["NUMA nodes", shape],
        ["compute threads in this report", f"{result['threads']}"],
        [
            "memory",
            f"{result['memory_bytes'] / 1e9:.1f} GB ({result['memory_available_bytes'] / 1e9:.1f} GB available)",
        ],
        ["load average before", f"{result['load_average']:.2f}"],
    ]
    sentences = []
    if rates is None:
        sentences.append(f"The machine's rates were not measured: {result['why_no_rates']}")
    else:
        rows.append(["memory read rate", f"{rates['read_bytes_per_s'] / 1e9:.1f} GB/s"])
        rows.append([f"multiply-adds ({rates['instruction']})", f"{number(rates['macs_per_s'] / 1e9)} G/s"])
        sentences.append(
            "A model's answer reads all weights for every token, so the read rate limits it; a prompt computes with"
            " every weight for every token, so the multiply-adds limit that."
        )
    if result["load_average"] > 0.5:
        sentences.append("Other programs were running: the figures of this report are lower than on an idle machine.")
    return View(sentences=sentences, tables=[Table(caption="", columns=["", "this machine"], rows=rows)])


SECTION = Section(
    "machine",
    "The machine",
    "Processor and memory as the system reports them; the read rate and the multiply-adds a second as all compute"
    " threads together reach them in small loops of their own, best of three samples.",
    measure,
    view,
    lambda setup: 2.0,
)
