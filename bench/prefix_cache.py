"""Time to the first token of a prompt that is new, that was sent before, and that another tenant sent before.

The three alternate on one loaded model; the last must take as long as the first. Run:
`python -m bench.prefix_cache MODEL --threads 2`; prints one JSON object.
"""

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams
from bench.common import machine
from kernels import _native


def first_token_s(engine: Engine, prompt: Sequence[int], tenant: bytes) -> float:
    """Seconds from the request to its only token."""
    done = threading.Event()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        for _, event in events:
            if isinstance(event, EngineError):
                raise event
        done.set()

    began_s = time.perf_counter()
    engine.submit(GenerateRequest("one", tuple(prompt), 1, SamplingParams(temperature=0.0), tenant=tenant), deliver, 0)
    done.wait()
    return time.perf_counter() - began_s


def main() -> None:
    """Prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a converted model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512, help="its tokens")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    runner = NativeRunner(
        options.model,
        threads=options.threads,
        kv_pages=4 * (options.prompt // _native.PAGE_TOKENS + 1),
        max_sequences=1,
        max_step_tokens=512,
        max_context_tokens=options.prompt + 1,
    )
    engine = Engine(runner, prompt_chunk_tokens=512)
    engine.start()
    rng = random.Random(0)
    seconds: dict[str, list[float]] = {"new": [], "asked before": [], "asked before by another tenant": []}
    for _ in range(options.rounds + 1):
        prompt = rng.choices(range(runner.vocab_size), k=options.prompt)
        for name, tenant in zip(seconds, (b"one", b"one", b"other"), strict=True):
            seconds[name].append(first_token_s(engine, prompt, tenant))
    engine.stop()
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first round warms up
    result = {
        **machine(),
        "tier": runner.model.tier,
        "threads": options.threads,
        "model": Path(options.model).name,
        "prompt_tokens": options.prompt,
        "first_token_ms": {name: round(median * 1e3, 2) for name, median in medians.items()},
        "of_new": {name: round(median / medians["new"], 3) for name, median in medians.items()},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
