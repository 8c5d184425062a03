"""`redoubt bench engine`: tokens a second of the engine itself, without HTTP and text.

Runs the service's engine (scheduler, arrays, native step, greedy sampling, delivery) with random token ids in an
otherwise idle process. The figures:

- `first_token_s`: from `submit` of one request with `prompt` tokens to the delivery of its first token.
- `prefill_tokens_per_s`: the prompt's tokens divided by that time.
- `decode_tokens_per_s`: tokens of all streams together, over `generate` steps after each stream (with a prompt of
  `decode_context` tokens) has its first token; no step contains a prompt.
- `load_s`: creating the runner (validating and mapping or reading the file, allocating KV memory) and its first step,
  of one token.
- `resident_bytes`: the process' memory at the end, mapped weights included; `..._by_owner` as the engine counts it.

Each is the median of `repeats` rounds, after one round that is not counted. With `--stages` as many rounds follow in
which the native step records where its time goes (`bench.stages`): `stages` has a step of the prompt, and one of each
number of streams; the same as a table is printed on the standard error.
"""

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams
from bench.common import OneLineParser, at_least, machine, number_list, print_result, process_resident_bytes
from bench.stages import Profile, described, step_times
from bench.work import CLOCKS, Work, works
from kernels import _native

STEP_TOKENS = 512
GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass(frozen=True, slots=True)
class EngineBenchOptions:
    model: Path
    threads: int
    prompt: int = 512
    generate: int = 64
    batches: tuple[int, ...] = (1, 8, 32)
    decode_context: int = 128
    repeats: int = 3
    kv_type: str = "auto"
    compute_type: str = "auto"
    prompt_compute_type: str = "auto"
    weight_memory: str = "auto"
    clock: str = "wall"
    stages: bool = False

    def works(self) -> list[Work]:
        """The works: prefill, then decoding at each batch."""
        return works((self.prompt,), self.decode_context, self.generate, self.batches)


class _StepClock:
    """Receives the events of one measurement and records the time of each step."""

    def __init__(self, streams: int, further_steps: int, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.submitted_s = 0.0
        self.all_started_s = 0.0
        self.seconds = 0.0
        self.tokens = 0
        self.error: EngineError | None = None
        self.done = threading.Event()
        self.all_submitted = (
            threading.Lock()
        )  # held until all are submitted, so that the engine waits after its first step
        self.delivered_s: list[float] = []
        """When each step's tokens came."""
        self._silent: set[object] = set(range(streams))
        self._steps_left = further_steps

    def deliver(self, events: Sequence[tuple[object, Event]]) -> None:
        with self.all_submitted:
            now = self.now_s()
        if self.done.is_set():
            return
        for _, event in events:
            if isinstance(event, EngineError):
                self.error = event
                self.done.set()
                return
        self.delivered_s.append(now)
        if self._silent:
            self._silent -= {key for key, _ in events}
            if self._silent:
                return
            self.all_started_s = now
        else:
            self.tokens += len(events)  # an event has one token
            self._steps_left -= 1
        if self._steps_left == 0:
            self.seconds = now - self.all_started_s
            self.done.set()


class EngineBench:
    """An engine over a packed model, sized for a list of works."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int,
        kv_type: str,
        compute_type: str = "auto",
        prompt_compute_type: str = "auto",
        weight_memory: str = "auto",
        works: Sequence[Work],
        clock: str,
        cpus: Sequence[int] = (),
    ) -> None:
        """Loads the model and makes its first step. Raises what `NativeRunner` raises.

        cpus: one for each thread; without them threads are not pinned.
        """
        self._now_s = CLOCKS[clock]
        began = self._now_s()
        streams = max(work.streams for work in works)
        step_tokens = max(STEP_TOKENS, streams)
        # While the streams start one after another, the first ones already generate tokens.
        self._spare_tokens = 8 + 2 * -(-sum(work.streams * work.context_tokens for work in works) // step_tokens)
        each = [work.context_tokens + work.new_tokens + self._spare_tokens for work in works]
        pages = [work.streams * -(-tokens // _native.PAGE_TOKENS) for work, tokens in zip(works, each, strict=True)]
        self.runner = NativeRunner(
            str(model),
            threads=threads,
            cpus=cpus,
            kv_type=kv_type,
            compute_type=compute_type,
            prompt_compute_type=prompt_compute_type,
            weight_memory=weight_memory,
            kv_pages=max(pages),
            max_sequences=streams,
            max_step_tokens=step_tokens,
            max_context_tokens=max(each),
        )
        self._engine = Engine(self.runner, prompt_chunk_tokens=step_tokens, expected_output_tokens=1)
        self._random = random.Random(7)
        self._engine.start()
        self._run(1, 1, 1, 0)
        self.load_s = self._now_s() - began

    def measure(self, work: Work) -> float:
        """Seconds from a prompt to its first token, or of the decode steps in which all streams decode."""
        if work.kind == "prefill":
            clock = self._run(1, work.context_tokens, 1, 0)
            return clock.all_started_s - clock.submitted_s
        new_tokens = work.new_tokens + self._spare_tokens
        clock = self._run(work.streams, work.context_tokens, new_tokens, work.new_tokens)
        assert clock.tokens == work.tokens, f"{clock.tokens} timed tokens instead of {work.tokens}"
        return clock.seconds

    def answer_times_s(self, prompt_tokens: int, new_tokens: int) -> list[float]:
        """Seconds from the submission of one request to the delivery of each of its tokens."""
        clock = self._run(1, prompt_tokens, new_tokens, new_tokens - 1)
        return [delivered_s - clock.submitted_s for delivered_s in clock.delivered_s]

    def profile(self, run: Callable[[], object]) -> dict[str, Profile]:
        """Where the time of the steps of `run`, which computes something here, goes: of prompts, and of decoding."""
        self._wait_until_idle()  # the last run's requests are aborted
        self.runner.model.start_profile()
        run()
        self._wait_until_idle()
        self.runner.model.stop_profile()
        return dict(self.runner.model.profile())

    def _wait_until_idle(self) -> None:
        while self._engine.statistics().running:
            time.sleep(0.001)

    def close(self) -> None:
        self._engine.stop()

    def _run(self, streams: int, context_tokens: int, new_tokens: int, further_steps: int) -> _StepClock:
        clock = _StepClock(streams, further_steps, self._now_s)
        requests = [
            GenerateRequest(
                f"{stream}",
                tuple(self._random.choices(range(self.runner.vocab_size), k=context_tokens)),
                new_tokens,
                GREEDY,
                tenant=b"",
            )
            for stream in range(streams)
        ]
        with clock.all_submitted:
            clock.submitted_s = clock.now_s()
            for stream, request in enumerate(requests):
                self._engine.submit(request, clock.deliver, stream)
        clock.done.wait()
        for request in requests:
            self._engine.abort(request.request_id)
        if clock.error is not None:
            raise clock.error
        return clock


def _stages(bench: EngineBench, options: EngineBenchOptions) -> dict[str, object]:
    """The entry of a result that says where the time of steps goes."""
    times: dict[str, dict[str, object]] = {}
    for work in options.works():
        kind = "prompt" if work.kind == "prefill" else "decode"
        rounds = [bench.profile(partial(bench.measure, work))[kind] for _ in range(options.repeats)]
        times[work.name] = step_times(rounds)
    print(described(times), file=sys.stderr)
    return {"stages": times}


def measure_engine(options: EngineBenchOptions) -> dict[str, object]:
    """Runs the bench; the result is ready for JSON. Raises EngineError, and what loading raises."""
    bench = EngineBench(
        options.model,
        threads=options.threads,
        kv_type=options.kv_type,
        compute_type=options.compute_type,
        prompt_compute_type=options.prompt_compute_type,
        weight_memory=options.weight_memory,
        works=options.works(),
        clock=options.clock,
    )
    seconds: dict[Work, list[float]] = {work: [] for work in options.works()}
    try:
        rounds = [work for _ in range(options.repeats + 1) for work in options.works()]
        with tqdm(rounds, file=sys.stderr, unit="run", leave=False) as progress:
            for work in progress:
                progress.set_description(work.name)
                seconds[work].append(bench.measure(work))
        stages = _stages(bench, options) if options.stages else {}
    finally:
        bench.close()
    median_s = {work: statistics.median(taken[1:]) for work, taken in seconds.items()}
    prefill, *decodes = options.works()
    return {
        "model": options.model.name,
        "prefill_tokens_per_s": round(prefill.tokens / median_s[prefill], 1),
        "decode_tokens_per_s": {str(work.streams): round(work.tokens / median_s[work], 1) for work in decodes},
        "first_token_s": round(median_s[prefill], 6),
        "load_s": round(bench.load_s, 3),
        **stages,
        "resident_bytes": process_resident_bytes(),
        "resident_bytes_by_owner": bench.runner.model.resident_bytes(),
        "threads": options.threads,
        **machine(),
        "tier": bench.runner.model.tier,
        "compute_type": options.compute_type,
        "prompt_compute_type": "bf16" if bench.runner.model.has_bf16_prompts else "same",
        "kv_type": bench.runner.model.kv_type,
        "weight_memory": bench.runner.model.weight_memory,
        "prompt": options.prompt,
        "generate": options.generate,
        "decode_context": options.decode_context,
        "repeats": options.repeats,
        "clock": options.clock,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    positive = at_least(1)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--threads", type=positive, required=True, help="compute threads")
    parser.add_argument("--prompt", type=positive, default=512, help="tokens of the prompt (default %(default)s)")
    parser.add_argument("--generate", type=positive, default=64, help="decode steps (default %(default)s)")
    parser.add_argument(
        "--batch", type=number_list, default=(1, 8, 32), help="concurrent streams, as 1,8,32 (the default)"
    )
    parser.add_argument(
        "--decode-context", type=positive, default=128, help="tokens before decoding (default %(default)s)"
    )
    parser.add_argument("--repeats", type=positive, default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu: for one thread on a busy machine (default wall)"
    )
    parser.add_argument("--kv-type", choices=("auto", *_native.KV_TYPES), default="auto", help="(default %(default)s)")
    parser.add_argument(
        "--compute-type", choices=("auto", "int8", "bf16", "fp32"), default="auto", help="(default %(default)s)"
    )
    parser.add_argument(
        "--prompt-compute-type", choices=("auto", "same", "bf16"), default="auto", help="(default %(default)s)"
    )
    parser.add_argument(
        "--weight-memory", choices=("auto", "mapped", "huge_pages"), default="auto", help="(default %(default)s)"
    )
    parser.add_argument("--stages", action="store_true", help="also where a step's time goes, by stage and type")


def options_of(arguments: argparse.Namespace) -> EngineBenchOptions:
    return EngineBenchOptions(
        model=arguments.model,
        threads=arguments.threads,
        prompt=arguments.prompt,
        generate=arguments.generate,
        batches=arguments.batch,
        decode_context=arguments.decode_context,
        repeats=arguments.repeats,
        kv_type=arguments.kv_type,
        compute_type=arguments.compute_type,
        prompt_compute_type=arguments.prompt_compute_type,
        weight_memory=arguments.weight_memory,
        clock=arguments.clock,
        stages=arguments.stages,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="redoubt bench engine", description="Measure the engine.")
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    parsed = parser.parse_args(arguments)
    errors = (EngineError, ValueError, OSError)
    return print_result(lambda: measure_engine(options_of(parsed)), errors, indent=None if parsed.json else 2)


if __name__ == "__main__":
    raise SystemExit(main())
