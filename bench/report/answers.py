"""The process of `bench.report.placement`: an engine on given cores and memory that answers one request at a time.

Reads a JSON job from standard input, {"asks": [[prompt tokens, new tokens], ...], "repeats": n}, and prints
{"load_s": s, "times_s": [ask][round][token]} in seconds. One round more than `repeats` is made; the first is left out.
"""

import argparse
import json
import sys
from pathlib import Path

from bench.engine import EngineBench
from bench.work import Work, take_stdout
from kernels import _native


def cpu_list(text: str) -> tuple[int, ...]:
    """Numbers from 0 on, with commas."""
    return tuple(int(part) for part in text.split(","))


def bind_memory(nodes: tuple[int, ...]) -> None:
    """Memory of this process, and of its threads, comes from these nodes. Raises OSError, ValueError."""
    if len(nodes) == 1:
        _native.bind_memory_to_node(nodes[0])
    elif nodes:
        _native.interleave_memory(list(nodes))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--cpus", type=cpu_list, required=True)
    parser.add_argument("--memory-nodes", type=cpu_list, default=())
    parser.add_argument("--weight-memory", required=True)
    options = parser.parse_args()
    results = take_stdout()
    bind_memory(options.memory_nodes)
    job = json.load(sys.stdin)
    asks = [(int(prompt), int(new)) for prompt, new in job["asks"]]
    bench = EngineBench(
        options.model,
        threads=len(options.cpus),
        cpus=options.cpus,
        kv_type="auto",
        weight_memory=options.weight_memory,
        works=[Work("decode", 1, prompt, new) for prompt, new in asks],
        clock="wall",
    )
    try:
        rounds = [[bench.answer_times_s(*ask) for ask in asks] for _ in range(job["repeats"] + 1)]
    finally:
        bench.close()
    times_s = [[one[number] for one in rounds[1:]] for number in range(len(asks))]
    print(json.dumps({"load_s": bench.load_s, "times_s": times_s}), file=results, flush=True)


if __name__ == "__main__":
    main()
