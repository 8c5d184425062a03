"""How long the kernels wait between two decode steps, and for what, by the number of streams.

Decodes on all streams at once, with random prompts. The kernels wait while the engine's thread takes requests (drain),
plans (schedule), fills arrays (fill), passes them to the native call and gets the interpreter's lock back after it
(call), takes the tokens (take), and calls receivers (deliver). Times are of the wall clock; the kernels' own time is
the native profile's.

Two kinds of receivers: "alone" does nothing; "streams" is the worker's asyncio (`app.engine.stream`), with one reader
that pickles each message, so that another thread wants the interpreter's lock after each step.

    python -m bench.experiments.kernel_waits MODEL --threads 2

With `--against FOLDER`, another checkout whose engine is built, each case runs in turns in both. Prints one JSON
object, and writes it to `--out`: by receivers, streams and checkout, medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.engine.stream import AsyncEngine
from app.messages.requests import GenerateRequest, SamplingParams
from bench.common import OneLineParser, at_least, json_text, machine, number_list
from bench.places import shown_command
from bench.processor import machine_facts, this_processor

PROMPT_TOKENS: Final = 32
WARM_STEPS: Final = 16
RECEIVERS: Final = ("alone", "streams")
PHASES: Final = {
    "_drain_inbox": "drain",
    "_schedule": "schedule",
    "_compute": "fill",
    "_postprocess": "take",
    "_outbox.flush": "deliver",
}
"""Methods of the engine, and what the time in them counts as: without the time in others of them."""


class _Clock:
    """Times the engine's methods over `steps` decode steps of all streams."""

    def __init__(self, engine: Engine, runner: NativeRunner, streams: int, steps: int) -> None:
        self.measured = threading.Event()
        self._steps: list[dict[str, float]] = []
        """Seconds of each step by phase; "kernels" and "wall" besides."""
        self._model: Any = runner.model
        self._streams, self._left = streams, WARM_STEPS + steps
        self._now: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []  # seconds in timed calls within each open one
        self._ended_s = 0.0
        for path, phase in PHASES.items():
            *owners, method = path.split(".")
            owner = reduce(getattr, owners, engine)
            setattr(owner, method, self._timed(getattr(owner, method), phase))
        runner._step_native = self._native(runner._step_native)  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began_s = time.perf_counter()
            self._inner.append(0.0)
            result = call(*arguments)
            taken_s = time.perf_counter() - began_s
            inner_s = self._inner.pop()
            if self._inner:
                self._inner[-1] += taken_s
            self._now[phase] += taken_s - inner_s
            return result

        return timed

    def _native(self, step: Callable[..., Any]) -> Callable[..., Any]:
        timed = self._timed(step, "call")

        def native(batch: Any, samplers: Any) -> Any:
            sampled = timed(batch, samplers)
            if len(batch.token_ids) != self._streams or batch.prompts or self.measured.is_set():
                return sampled
            ended_s = time.perf_counter()
            kernels_s = self._kernels_s()
            self._now["call"] -= kernels_s
            self._steps.append({**self._now, "kernels": kernels_s, "wall": ended_s - self._ended_s})
            self._now.clear()
            self._left -= 1
            if self._left == 0:
                self.measured.set()
            self._ended_s = time.perf_counter()  # the profile's own time counts in no step
            return sampled

        return native

    def _kernels_s(self) -> float:
        """Seconds of the last step in the kernels, which are recorded anew from now on."""
        profile = self._model.profile()
        if hasattr(self._model, "start_profile"):
            self._model.start_profile()
            return float(sum(seconds for _, stages in profile.values() for seconds, _, _ in stages.values()))
        self._model.reset_profile()  # of a checkout whose profile is always on
        return float(sum(profile.values()) - profile["barriers"])

    def result(self) -> dict[str, float]:
        """The share of the wall time in which the kernels wait, medians over steps by phase, and the speed."""
        steps = self._steps[WARM_STEPS:]
        wall_s = sum(step["wall"] for step in steps)
        waits = [step["wall"] - step["kernels"] for step in steps]
        phases = {
            f"{phase}_us": statistics.median(step.get(phase, 0.0) for step in steps) * 1e6
            for phase in (*PHASES.values(), "call")
        }
        return {
            "waits_share": sum(waits) / wall_s,
            "waits_us": statistics.median(waits) * 1e6,
            **phases,
            "step_us": statistics.median(step["wall"] for step in steps) * 1e6,
            "tokens_per_s": self._streams * len(steps) / wall_s,
        }


def measure(model: Path, threads: int, receivers: str, streams: int, steps: int) -> dict[str, float]:
    """Shares of the time in which the kernels wait, over `steps` decode steps."""
    new_tokens = 2 * WARM_STEPS + steps + 8
    tokens = PROMPT_TOKENS + new_tokens
    runner = NativeRunner(
        str(model),
        threads=threads,
        kv_pages=streams * (tokens // 32 + 2),
        max_sequences=streams,
        max_step_tokens=max(512, streams * PROMPT_TOKENS),
        max_context_tokens=tokens,
    )
    engine = Engine(runner, prompt_chunk_tokens=streams * PROMPT_TOKENS, expected_output_tokens=1)
    clock = _Clock(engine, runner, streams, steps)
    drawn = random.Random(streams)
    requests = [
        GenerateRequest(
            f"{stream}",
            tuple(drawn.choices(range(runner.vocab_size), k=PROMPT_TOKENS)),
            new_tokens,
            SamplingParams(temperature=0.0, seed=0),
            tenant=b"",
        )
        for stream in range(streams)
    ]
    try:
        if receivers == "alone":
            for request in requests:
                engine.submit(request, lambda events: None, request.request_id)
            engine.start()
            clock.measured.wait()
        else:
            asyncio.run(_stream(engine, requests, clock.measured))
    finally:
        engine.stop()
    return clock.result()


async def _stream(engine: Engine, requests: Sequence[GenerateRequest], measured: threading.Event) -> None:
    streams = AsyncEngine(engine)

    async def read(request: GenerateRequest) -> None:
        async for bundle in streams.stream(request, reader="ingress"):
            pickle.dumps(bundle)

    tasks = [asyncio.create_task(read(request)) for request in requests]
    await asyncio.sleep(0)  # all are submitted
    engine.start()
    await asyncio.gather(*tasks)
    assert measured.is_set()


def in_checkout(folder: Path, arguments: Sequence[str]) -> dict[str, float]:
    """Runs one case in another process, with the modules of `folder`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Prints the medians of all rounds, by checkout, receivers and streams."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    positive = at_least(1)
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--threads", type=positive, required=True)
    parser.add_argument("--streams", type=number_list, default=(1, 16, 64), help="(default 1,16,64)")
    parser.add_argument("--receivers", choices=RECEIVERS, action="append", help="(default both)")
    parser.add_argument("--steps", type=positive, default=200, help="decode steps of a round (default %(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="(default %(default)s)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--out", type=Path, help="a file for the result as JSON")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    receivers = parsed.receivers or RECEIVERS
    if parsed.one:
        one = measure(parsed.model, parsed.threads, receivers[0], parsed.streams[0], parsed.steps)
        print(json.dumps(one))
        return
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    checkouts = {"this": Path(__file__).parents[2]}
    if parsed.against is not None:
        checkouts["against"] = parsed.against
    taken: dict[tuple[str, str, int], list[dict[str, float]]] = defaultdict(list)
    for _ in range(parsed.rounds):
        for receiver in receivers:
            for streams in parsed.streams:
                for name, folder in checkouts.items():
                    arguments = [str(parsed.model.resolve()), "--threads", str(parsed.threads)]
                    arguments += ["--receivers", receiver, "--streams", str(streams), "--steps", str(parsed.steps)]
                    taken[name, receiver, streams].append(in_checkout(folder, arguments))
    results: dict[str, Any] = {}
    for (name, receiver, streams), rounds in taken.items():
        medians = {figure: round(statistics.median(each[figure] for each in rounds), 4) for figure in rounds[0]}
        results.setdefault(receiver, {}).setdefault(str(streams), {})[name] = medians
    about = {**machine(), "machine": machine_facts(this_processor()), "measured_at": began_at}
    command = shown_command(["python", "-m", "bench.experiments.kernel_waits", *sys.argv[1:]])
    sizes = {name: getattr(parsed, name) for name in ("threads", "steps", "rounds")}
    result = {**about, "command": command, "model": parsed.model.name, **sizes, "results": results}
    if parsed.out is not None:
        parsed.out.write_text(json_text(result), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
