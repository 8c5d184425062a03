"""`redoubt bench gains`: what each optimization of the engine gains by itself.

    redoubt bench gains MODEL --data FILE --threads 2 --out X.json

Each row switches one thing and leaves the rest at its default. The engine runs in this process, as a worker runs it,
and answers the same requests with and without it, in turn, a new engine each time. Where the engine has no such
switch, the requests come as they would have to come without it:

- batching: one request at a time; or in whole batches, of which the next begins when the longest answer of the last
  one has ended.
- pages: as many at a time as have room for a whole context each, in the memory that the pages have.

A gain is the time without over the time with, of the same round. What prefix cache, int8 pages and guesses gain on
conversations through HTTP, `redoubt bench conversations --variants` measures. Knows neither HTTP nor other engines.
"""

import os
import queue
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams
from app.settings.worker import EngineSettings
from bench.common import OneLineParser, at_least, exit_on_end_signals, machine, print_result
from bench.conversations.command import tokenizer_of, vocab_size_of
from bench.conversations.data import Conversations, DataError, read_conversations
from bench.conversations.plan import Bounds, select
from bench.conversations.rounds import LEAST_ROUNDS, extremes
from bench.cores import default_threads
from bench.experiments.speculation import SCENARIOS, TEXT
from bench.places import shown_command
from bench.processor import machine_facts, this_processor
from kernels import _native

AT_ONCE: Final = 16
CONTEXT_TOKENS: Final = 2048
FEW_CONTEXTS: Final = 4
"""Whole contexts that fit the memory of the row about pages."""
STEP_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a prompt, and the most tokens of its answer."""

    prompt: tuple[int, ...]
    new_tokens: int
    ends: frozenset[int] = frozenset()
    """Tokens that end the answer; without them it is as long as ordered."""


@dataclass(frozen=True, slots=True)
class How:
    """How an engine is set up, and how the requests come."""

    at_once: int = AT_ONCE
    whole_batches: bool = False
    """Whether the next `at_once` requests come when all of the last ones are done, rather than each when one is."""
    kv_tokens: int = AT_ONCE * CONTEXT_TOKENS
    kv_type: str = "auto"
    compute_type: str = "auto"
    prefix_cache: bool = True
    guess_tokens: int = field(default_factory=lambda: EngineSettings().guess_tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """One optimization on one load."""

    name: str
    load: str
    on: How
    off: How


DEFAULT: Final = How()
ALONE: Final = How(at_once=1)
LONG: Final = How(at_once=4, guess_tokens=0)
"""For random prompts, whose continuations repeat themselves, so that guesses would decide."""
FEW: Final = How(kv_tokens=FEW_CONTEXTS * CONTEXT_TOKENS)
ROWS: Final = (
    Row("batching, over one at a time", "few conversations", DEFAULT, ALONE),
    Row("batching as requests come, over whole batches", "conversations", DEFAULT,
        replace(DEFAULT, whole_batches=True)),
    Row("pages, over whole contexts", "conversations", FEW, replace(FEW, at_once=FEW_CONTEXTS)),
    Row("int8 pages, over the default's", "long prompts", replace(LONG, kv_type="int8"), LONG),
    Row("int8 products, over fp32", "few conversations", replace(DEFAULT, compute_type="int8"),
        replace(DEFAULT, compute_type="fp32")),
    Row("prefix cache", "one beginning", DEFAULT, replace(DEFAULT, prefix_cache=False)),
    Row("guesses from the text", "texts that copy", ALONE, replace(ALONE, guess_tokens=0)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    """From the first request to the last token."""
    tokens: int
    """Tokens of all answers."""


def answered(engine: Engine, asks: Sequence[Ask], how: How) -> Run:
    """Has the engine answer all. Raises EngineError."""
    ended: queue.SimpleQueue[EngineError | None] = queue.SimpleQueue()
    tokens = 0

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        nonlocal tokens
        for _, event in events:
            if isinstance(event, EngineError):
                ended.put(event)
                continue
            tokens += len(event.token_ids)
            if event.finish_reason is not None:
                ended.put(None)

    def wait_for_one() -> None:
        error = ended.get()
        if error is not None:
            raise error

    began_s = time.perf_counter()
    running = 0
    for number, ask in enumerate(asks):
        if running == how.at_once:
            for _ in range(running if how.whole_batches else 1):
                wait_for_one()
                running -= 1
        sampling = SamplingParams(temperature=0.0, seed=0)
        request = GenerateRequest(f"{number}", ask.prompt, ask.new_tokens, sampling, ask.ends, tenant=b"")
        engine.submit(request, deliver, number)
        running += 1
    for _ in range(running):
        wait_for_one()
    return Run(time.perf_counter() - began_s, tokens)


def run(model: Path, threads: int, asks: Sequence[Ask], how: How) -> Run:
    """Makes an engine, warms it up and has it answer all. Raises EngineError, and what loading raises."""
    settings = EngineSettings()
    runner = NativeRunner(
        str(model),
        threads=threads,
        compute_type=how.compute_type,
        prompt_compute_type=settings.prompt_compute_type if how.compute_type == "auto" else "same",
        kv_type=how.kv_type,
        kv_pages=-(-how.kv_tokens // _native.PAGE_TOKENS),
        max_sequences=how.at_once,
        max_step_tokens=STEP_TOKENS,
        max_context_tokens=CONTEXT_TOKENS,
    )
    engine = Engine(
        runner,
        prompt_chunk_tokens=settings.prompt_chunk_tokens,
        prompt_pause_s=settings.prompt_pause_s,
        prefix_cache=how.prefix_cache,
        cache_secret=os.urandom(32),
        guess_tokens=how.guess_tokens,
    )
    engine.start()
    try:
        answered(engine, [Ask((1, 2, 3), 8)], how)
        return answered(engine, asks, how)
    finally:
        engine.stop()


def make_loads(model: Path, data: Conversations, count: int) -> dict[str, list[Ask]]:
    """The requests of each load. Raises DataError if there are too few conversations."""
    chat = ChatModel.load(model, max_context_tokens=CONTEXT_TOKENS)
    bounds = Bounds(turns=1, max_prompt_tokens=512, max_answer_tokens=128)

    def prompt(*messages: Message) -> tuple[int, ...]:
        return tuple(chat.chat_prompt(list(messages)))

    chosen = select(data.usable, count, bounds, tokenizer_of(model), vocab_size=None, seed=7).conversations
    if len(chosen) < count:
        raise DataError(f"the data has {len(chosen)} conversations of such lengths, and {count} are needed")
    conversations, one_beginning = [], []
    system = Message(role="system", content="\n\n".join([TEXT] * 5))
    for one in chosen:
        (request,) = one.requests
        asked = [Message(role="user", content=text) for role, text in request.messages if role == "user"]
        conversations.append(Ask(prompt(*asked), request.answer_tokens))
        one_beginning.append(Ask(prompt(system, *asked), min(32, request.answer_tokens)))
    rng, ids = random.Random(7), range(vocab_size_of(model))
    ends = frozenset(chat.eos_token_ids)
    copies = [one for one in SCENARIOS if one.copies and one.concurrent == 1]
    return {
        "conversations": conversations,
        "few conversations": conversations[:AT_ONCE],
        "one beginning": one_beginning[: 2 * AT_ONCE],
        "texts that copy": [
            Ask(prompt(Message(role="user", content=one.asked)), one.new_tokens, ends) for one in copies
        ],
        "long prompts": [Ask(tuple(rng.choices(ids, k=1536)), 256) for _ in range(LONG.at_once)],
    }


def measure(model: Path, threads: int, rounds: int, loads: dict[str, list[Ask]]) -> list[dict[str, Any]]:
    """All rows, in rounds: in each, every row runs with and without, and another of the two begins."""
    found: list[list[tuple[Run, Run]]] = [[] for _ in ROWS]
    for number in range(rounds):
        for row, pairs in zip(ROWS, found, strict=True):
            order = (row.on, row.off) if number % 2 == 0 else (row.off, row.on)
            runs = {how: run(model, threads, loads[row.load], how) for how in order}
            pairs.append((runs[row.on], runs[row.off]))
            on, off = pairs[-1]
            gain = f"{off.seconds / on.seconds:.2f} ({on.seconds:.1f} s over {off.seconds:.1f} s)"
            print(f"round {number + 1}, {row.name}, {row.load}: {gain}", file=sys.stderr, flush=True)
    return [of_row(row, pairs) for row, pairs in zip(ROWS, found, strict=True)]


def of_row(row: Row, pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    """A row's figures, ready for JSON."""
    return {
        "name": row.name,
        "load": row.load,
        "gain": extremes([off.seconds / on.seconds for on, off in pairs]),
        "tokens_per_s": {
            "on": round(statistics.median(on.tokens / on.seconds for on, _ in pairs), 1),
            "off": round(statistics.median(off.tokens / off.seconds for _, off in pairs), 1),
        },
        "on": asdict(row.on),
        "off": asdict(row.off),
        "rounds_s": [{"on": round(on.seconds, 3), "off": round(off.seconds, 3)} for on, off in pairs],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="redoubt bench gains", description="What each optimization gains by itself.")
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="folder of a converted model that chats")
    add("--data", type=Path, required=True, help="conversations: ShareGPT's JSON, or OpenAI messages as JSON lines")
    add("--threads", type=at_least(1), help="compute threads (default: the first NUMA node's cores)")
    add("--rounds", type=at_least(1), default=LEAST_ROUNDS, help="medians count (default %(default)s)")
    add("--conversations", type=at_least(1), default=48, help="of the load of that name (default %(default)s)")
    add("--out", type=Path, help="a file for the result as JSON")
    options = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    threads = options.threads or default_threads()
    exit_on_end_signals()

    def result() -> dict[str, Any]:
        loads = make_loads(options.model, read_conversations(options.data), options.conversations)
        return {
            "model": options.model.name,
            **machine(),
            "machine": machine_facts(this_processor()),
            "threads": threads,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shown_command(["redoubt", "bench", "gains", *given]),
            "loads": {
                name: {
                    "requests": len(asks),
                    "prompt_tokens_median": statistics.median(len(ask.prompt) for ask in asks),
                    "new_tokens_median": statistics.median(ask.new_tokens for ask in asks),
                }
                for name, asks in loads.items()
            },
            "kv_bytes_per_token": {
                kind: _native.Model.kv_page_bytes(str(options.model), kind, None) / _native.PAGE_TOKENS
                for kind in ("int16", "bf16", "int8")
            },
            "rounds": options.rounds,
            "rows": measure(options.model, threads, options.rounds, loads),
        }

    errors = (DataError, EngineError, RuntimeError, ValueError, OSError)
    return print_result(result, errors, indent=2, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
