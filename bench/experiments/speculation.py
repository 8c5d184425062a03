"""Measures the speed gained by guessing tokens from the text itself, and the cost where there is nothing to guess.

Each scenario alternates without and with guesses on one loaded model, and both must generate the same tokens. The model
ends its answers. Reported are the decoding speeds (from the first token on) and the ratio of the speed with guesses to
that without: of each pair of runs, and their median.
Run: `python -m bench.experiments.speculation MODEL --threads 2`; prints one JSON object.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams
from bench.common import machine

CODE = """def parse(line):
    name, _, value = line.partition("=")
    if not name:
        raise ValueError("a line without a name: " + line)
    return name.strip(), value.strip()


def load(path):
    settings = {}
    with open(path) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, value = parse(line)
                settings[name] = value
    return settings
"""
TEXT = (
    "The harbour master keeps a ledger of every ship that enters the bay. Each entry has the name of the ship, the "
    "port it came from, the goods it carries and the day it means to leave. On Fridays the ledger is copied by hand "
    "and the copy is sent to the capital, where clerks compare it with the ledgers of the other harbours. A ship that "
    "appears in two places on one day is asked to explain itself. Most of them can, for the clerks make mistakes too."
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A prompt, and the number of concurrent requests with it."""

    name: str
    copies: bool
    asked: str
    concurrent: int = 1
    temperature: float = 0.0
    new_tokens: int = 160


SCENARIOS = (
    Scenario("repeat a text", True, f"Repeat the following text word for word:\n\n{TEXT}"),
    Scenario("edit code", True, f"Write this code again, with the function `parse` renamed to `split`:\n\n{CODE}"),
    Scenario("type hints", True, f"Add type hints to this code:\n\n{CODE}"),
    Scenario("correct a text", True, f"Correct the mistakes in this text:\n\n{TEXT}"),
    Scenario("short summary", True, f"Give a short summary of this text.\n\n{TEXT}"),
    Scenario("summary with quotations", True, f"Summarize the following text, quoting its sentences:\n\n{TEXT}"),
    Scenario("repeat a text, 4 at once", True, f"Repeat the following text word for word:\n\n{TEXT}", concurrent=4),
    Scenario("story, drawn", False, "Tell me a story about a lighthouse.", temperature=1.0),
    Scenario("story, drawn, 8 at once", False, "Tell me a story about a lighthouse.", concurrent=8, temperature=1.0),
    Scenario("story, drawn, 32 at once", False, "Tell me a story about a lighthouse.", concurrent=32, temperature=1.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run of a scenario."""

    tokens_per_s: float
    outputs: tuple[tuple[int, ...], ...]
    guessed: int
    right: int


def run(
    runner: NativeRunner, prompt: Sequence[int], ends: frozenset[int], scenario: Scenario, guess_tokens: int
) -> Run:
    """Runs all of a scenario's requests concurrently on a new engine."""
    engine = Engine(runner, guess_tokens=guess_tokens, prompt_chunk_tokens=512)
    outputs: list[list[int]] = [[] for _ in range(scenario.concurrent)]
    left = scenario.concurrent
    began_s = ended_s = 0.0
    done = threading.Event()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        nonlocal left, began_s, ended_s
        for key, event in events:
            assert isinstance(key, int)
            if isinstance(event, EngineError):
                raise event
            outputs[key] += event.token_ids
            left -= event.finish_reason is not None
        if not began_s and all(outputs):
            began_s = time.perf_counter()
        if not left:
            ended_s = time.perf_counter()
            done.set()

    for number in range(scenario.concurrent):
        sampling = SamplingParams(temperature=scenario.temperature, seed=number)
        request = GenerateRequest(f"{number}", tuple(prompt), scenario.new_tokens, sampling, ends, tenant=b"")
        engine.submit(request, deliver, number)
    engine.start()
    done.wait()
    engine.stop()
    counts = engine.statistics()
    made = sum(map(len, outputs)) - scenario.concurrent  # the first ones are prefill's
    return Run(made / (ended_s - began_s), tuple(map(tuple, outputs)), counts.drafted_tokens, counts.accepted_tokens)


def measure(
    runner: NativeRunner, chat: ChatModel, scenario: Scenario, rounds: int, guess_tokens: int
) -> dict[str, object]:
    """Runs the scenario alternately without and with guesses, `rounds` times."""
    prompt = chat.chat_prompt([Message(role="user", content=scenario.asked)])
    ends = frozenset(chat.eos_token_ids)
    pairs = [
        (run(runner, prompt, ends, scenario, 0), run(runner, prompt, ends, scenario, guess_tokens))
        for _ in range(rounds)
    ]
    ratios = [with_guesses.tokens_per_s / without.tokens_per_s for without, with_guesses in pairs]
    assert all(without.outputs == with_guesses.outputs for without, with_guesses in pairs), "guesses changed a text"
    with_guesses = pairs[-1][1]
    return {
        "scenario": scenario.name,
        "copies": scenario.copies,
        "concurrent": scenario.concurrent,
        "temperature": scenario.temperature,
        "tokens_per_s_without": round(statistics.median(pair[0].tokens_per_s for pair in pairs), 1),
        "tokens_per_s_with": round(statistics.median(pair[1].tokens_per_s for pair in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "output_tokens": sum(map(len, with_guesses.outputs)),
        "guessed_tokens": with_guesses.guessed,
        "right_guesses": with_guesses.right,
    }


def main() -> None:
    """Prints the measurements of all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a converted model with a chat template")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--guess-tokens", type=int, default=16)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    options = parser.parse_args()
    runner = NativeRunner(
        options.model,
        threads=options.threads,
        kv_pages=600,
        max_sequences=32,
        max_step_tokens=512,
        max_context_tokens=1024,
    )
    chat = ChatModel.load(Path(options.model), max_context_tokens=1024)
    results = [
        measure(runner, chat, scenario, options.rounds, options.guess_tokens)
        for scenario in SCENARIOS
        if options.only in scenario.name
    ]
    print(
        json.dumps(
            {
                **machine(),
                "tier": runner.model.tier,
                "threads": options.threads,
                "model": Path(options.model).name,
                "scenarios": results,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
