"""What a chat waits for its tokens beside a running batch, and beside none.

Two chat loads at the engine, without HTTP: questions one after another, and four users who ask so at the same time.
Each is played beside a batch that always has requests (`--lines` of them) and beside none, in turns on one loaded
model, so that other programs on the machine slow both down. Times are a client's: from the call to the first token,
and between two tokens of an answer.
Run: `python -m bench.experiments.chats_beside_batch MODEL --threads 2`; prints one JSON object.
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Final

import numpy as np

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, Priority, SamplingParams
from app.settings.worker import EngineSettings
from bench.common import machine

CHAT_PROMPT: Final = (20, 120)
CHAT_TOKENS: Final = 16
LINE_PROMPT: Final = (100, 600)
LINE_TOKENS: Final = (50, 200)
PAUSE_S: Final = (0.05, 0.4)
"""Between a user's answer and the next question."""
USERS: Final = {"one after another": 1, "four users": 4}


@dataclass(slots=True)
class Times:
    """What the chats of one kind of round have waited, in seconds."""

    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    batch_tokens: int = 0
    lasted_s: float = 0.0
    interruptions: int = 0

    def summary(self) -> dict[str, float]:
        made: dict[str, float] = {"answers": len(self.first_s)}
        for name, values in (("first", self.first_s), ("between", self.between_s)):
            for percent in (50, 99):
                made[f"{name}_p{percent}_ms"] = round(1e3 * float(np.percentile(values, percent)), 2)
        made["batch_tokens_per_s"] = round(self.batch_tokens / self.lasted_s, 1)
        made["interruptions"] = self.interruptions
        return made


class Batch:
    """Requests of a batch, so many at a time, until it is stopped."""

    def __init__(self, engine: Engine, vocab_size: int, lines: int) -> None:
        self._engine, self._vocab_size = engine, vocab_size
        self._random = Random(7)
        self._names = count()
        self._is_over = False
        self.tokens = 0
        for _ in range(lines):
            self._submit()

    def stop(self) -> None:
        self._is_over = True

    def _submit(self) -> None:
        prompt = self._random.choices(range(self._vocab_size), k=self._random.randint(*LINE_PROMPT))
        tokens = self._random.randint(*LINE_TOKENS)
        request = GenerateRequest(
            f"line {next(self._names)}", tuple(prompt), tokens, SamplingParams(0.0), tenant=b"", priority=Priority.BATCH
        )
        self._engine.submit(request, self._deliver, None)

    def _deliver(self, events: Sequence[tuple[object, Event]]) -> None:
        for _, event in events:
            if isinstance(event, EngineError):
                if self._is_over:  # the engine ends
                    return
                raise event
            self.tokens += len(event.token_ids)
            if event.finish_reason is not None and not self._is_over:
                self._submit()


def ask(engine: Engine, vocab_size: int, user: int, questions: int, seed: int, times: Times) -> None:
    """One user's questions, one after another."""
    random = Random(f"{user} {seed}")
    for number in range(questions):
        time.sleep(random.uniform(*PAUSE_S))
        prompt = random.choices(range(vocab_size), k=random.randint(*CHAT_PROMPT))
        request = GenerateRequest(
            f"{user} {number}", tuple(prompt), CHAT_TOKENS, SamplingParams(0.0), tenant=b"%d" % user
        )
        arrived: SimpleQueue[tuple[float, Event]] = SimpleQueue()
        deliver = partial(_note, arrived)
        asked_s = time.perf_counter()
        engine.submit(request, deliver, None)
        at_s = []
        while True:
            now_s, event = arrived.get()
            if isinstance(event, EngineError):
                raise event
            at_s.append(now_s)
            if event.finish_reason is not None:
                break
        times.first_s.append(at_s[0] - asked_s)
        times.between_s += [later - earlier for earlier, later in pairwise(at_s)]


def _note(arrived: "SimpleQueue[tuple[float, Event]]", events: Sequence[tuple[object, Event]]) -> None:
    for _, event in events:
        arrived.put((time.perf_counter(), event))


@contextmanager
def beside(engine: Engine, vocab_size: int, lines: int, times: Times) -> Iterator[None]:
    """Runs the batch, if it has lines, and counts what it has made."""
    batch = Batch(engine, vocab_size, lines)
    began_s = time.perf_counter()
    try:
        yield
    finally:
        times.lasted_s += time.perf_counter() - began_s
        times.batch_tokens += batch.tokens
        batch.stop()


def play(runner: NativeRunner, users: int, questions: int, seed: int, lines: int, times: Times) -> None:
    """One round: every user asks `questions` questions."""
    settings = EngineSettings()
    engine = Engine(
        runner,
        prompt_chunk_tokens=settings.prompt_chunk_tokens,
        prompt_pause_s=settings.prompt_pause_s,
        guess_tokens=settings.guess_tokens,
    )
    engine.start()
    try:
        # The engine learns how long its prompts take.
        ask(engine, runner.vocab_size, users, 3, seed, Times())
        with beside(engine, runner.vocab_size, lines, times):
            threads = [
                threading.Thread(target=ask, args=(engine, runner.vocab_size, user, questions, seed, times))
                for user in range(users)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        times.interruptions += engine.statistics().interruptions
    finally:
        engine.stop()


def main() -> None:
    """Prints the measurements of both loads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a converted model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--questions", type=int, default=40, help="of a round, all users together")
    parser.add_argument("--lines", type=int, default=8, help="requests of the batch at a time")
    options = parser.parse_args()
    runner = NativeRunner(
        options.model,
        threads=options.threads,
        kv_pages=600,
        max_sequences=32,
        max_step_tokens=512,
        max_context_tokens=1024,
    )
    loads = []
    for name, users in USERS.items():
        times = {0: Times(), options.lines: Times()}
        for number in range(options.rounds):
            for lines in sorted(times, reverse=number % 2 == 1):
                play(runner, users, options.questions // users, number, lines, times[lines])
        alone, batch = (each.summary() for each in times.values())
        ratios = {key[:-3]: round(batch[key] / alone[key], 3) for key in alone if key.endswith("_ms")}
        loads.append({"load": name, "alone": alone, "beside_batch": batch, "ratios": ratios})
    print(
        json.dumps(
            {
                **machine(),
                "tier": runner.model.tier,
                "threads": options.threads,
                "model": Path(options.model).name,
                "rounds": options.rounds,
                "lines": options.lines,
                "loads": loads,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
