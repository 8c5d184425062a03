"""Measures how long a model that sleeps takes to wake: its first step beside the next one, and beside loading it anew.

Rounds of: give the memory back, compute a token, compute another. Then the model is loaded anew, from the page cache
too. Run: `python -m bench.experiments.waking MODEL --threads 2`; prints one JSON object.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from app.engine.native_runner import NativeRunner, kv_pages_within
from bench.common import at_least, machine, print_result, process_resident_bytes

_KV_BYTES = 1 << 30


def measure(options: argparse.Namespace) -> dict[str, object]:
    """The medians and the rounds, in seconds, ready for JSON. Raises ValueError, OSError."""
    runner = _load(options)
    tokens = np.arange(options.tokens, dtype=np.int32)
    first, length = np.zeros(1, np.int32), np.array([options.tokens], np.int32)
    step = partial(runner.model.step, tokens, tokens, first, length, first, [None])
    step()
    rounds: list[dict[str, float]] = []
    asleep_bytes = 0
    for _ in range(options.rounds):
        release_s = _seconds(runner.release_memory)
        asleep_bytes = process_resident_bytes()
        first_s, next_s = _seconds(step), _seconds(step)
        rounds.append({"release_s": round(release_s, 4), "first_s": round(first_s, 3), "next_s": round(next_s, 3)})
    awake_bytes = process_resident_bytes()
    del runner, step
    load_s = _seconds(lambda: _load(options))
    return {
        "wake_s": round(statistics.median(one["first_s"] - one["next_s"] for one in rounds), 3),
        "load_s": round(load_s, 3),
        "awake_bytes": awake_bytes,
        "asleep_bytes": asleep_bytes,
        "model": options.model.name,
        "tokens": options.tokens,
        "threads": options.threads,
        **machine(),
        "rounds": rounds,
    }


def _load(options: argparse.Namespace) -> NativeRunner:
    folder = str(options.model)
    return NativeRunner(
        folder,
        threads=options.threads,
        weight_memory="mapped",
        kv_type="int16",
        kv_pages=kv_pages_within(folder, "int16", _KV_BYTES),
        max_sequences=16,
        max_step_tokens=512,
        max_context_tokens=2048,
    )


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a converted model")
    parser.add_argument("--threads", type=at_least(1), required=True, help="compute threads")
    parser.add_argument("--tokens", type=at_least(1), default=1, help="of a step (default %(default)s)")
    parser.add_argument("--rounds", type=at_least(1), default=9, help="(default %(default)s)")
    options = parser.parse_args(arguments)
    return print_result(lambda: measure(options), (ValueError, OSError), indent=1)


if __name__ == "__main__":
    raise SystemExit(main())
