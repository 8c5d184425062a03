"""Measures structured output: the time of a mask over the vocabulary, of accepting a token, and of compiling a schema.

Outputs that match each schema are fed token by token, as the engine does it. "first" is a request with a schema that
was just compiled; "again" is the next request with the same one. A schema is compiled in a thread of its own; to
measure how much that delays other threads, a thread that only counts records its longest gap between two turns.
`--with xgrammar` measures that library alternately, in a process and an environment of its own.
Run: `redoubt bench structured MODEL`; prints one JSON object.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.interface.text.chat_model import ChatModel
from app.messages.failures import ConstraintError
from app.workers.constraints import Constraints
from bench.common import ROOT, OneLineParser, machine
from bench.peers import InstallError, xgrammar
from bench.process import Contender, CrashError
from bench.structured_cases import CASES, HOSTILE, walk
from bench.work import CLOCKS


class _Gap:
    """Measures the longest time for which a thread that only counts did not run."""

    def __enter__(self) -> "_Gap":
        self._end = threading.Event()
        self.longest_ms = 0.0
        self._thread = threading.Thread(target=self._count)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _count(self) -> None:
        before_s = time.perf_counter()
        while not self._end.is_set():
            time.sleep(0.0002)
            now_s = time.perf_counter()
            self.longest_ms = max(self.longest_ms, (now_s - before_s) * 1e3)
            before_s = now_s


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the 90th and 99th percentiles, and the maximum."""
    points = np.percentile(values, [50, 90, 99, 100])
    return {name: round(float(value), 1) for name, value in zip(("p50", "p90", "p99", "max"), points, strict=True)}


class Ours:
    """llguidance as the service uses it."""

    def __init__(self, folder: Path, vocab_size: int, clock: str) -> None:
        """Reads the vocabulary."""
        self._now_s = CLOCKS[clock]
        began_s = self._now_s()
        self.constraints = Constraints(folder, vocab_size)
        self.constraints.compile('{"type": "null"}')
        self.load_s = self._now_s() - began_s
        self._mask: NDArray[np.uint32] = np.zeros(-(-vocab_size // 32), np.uint32)

    def follow(self, schema: str, token_ids: Sequence[int]) -> dict[str, Any]:
        """Compiles a schema twice and feeds an output through each. Raises ValueError, ConstraintError."""
        answer: dict[str, Any] = {}
        for name in ("first", "again"):
            began_s = self._now_s()
            constraint = self.constraints.compile(schema)
            compile_ms = (self._now_s() - began_s) * 1e3
            masks_us, accepts_us = walk(
                token_ids,
                partial(constraint.fill_mask, self._mask),
                lambda token: self._mask[token // 32] >> np.uint32(token % 32) & 1,
                constraint.accept,
                self._now_s,
            )
            answer[name] = {"compile_ms": compile_ms, "masks_us": masks_us, "accepts_us": accepts_us}
        return answer


Follow = Callable[[str, Sequence[int]], Mapping[str, Any]]
"""(schema, tokens) -> the times of "first" and "again", or the reason for a refusal."""


def measure_case(
    tokenizer: Tokenizer, schema: Any, value: Any, rounds: int, libraries: Mapping[str, Follow]
) -> dict[str, Any]:
    """One schema: in every round each library compiles it anew, under another title, one after the other."""
    token_ids = tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False).ids
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in libraries}
    for number in range(rounds):
        text = json.dumps({**schema, "title": f"round {number}"})
        for name, follow in libraries.items():
            found[name].append(follow(text, token_ids))
    return {"tokens": len(token_ids)} | {name: summary(answers) for name, answers in found.items()}


def summary(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The times of all rounds, or the reason for a refusal."""
    refused = [answer["refused"] for answer in answers if "refused" in answer]
    if refused:
        return {"refused": refused[0]}

    def each(turn: str, what: str) -> dict[str, float]:
        return spread([value for answer in answers for value in answer[turn][what]])

    turns = ("first", "again")
    compiled, before = ([answer[turn]["compile_ms"] for answer in answers] for turn in turns)
    return {
        "compile_ms": round(statistics.median(compiled), 2),
        "compiled_before_ms": round(statistics.median(before), 3),
        "first_mask_us": round(statistics.median(answer["first"]["masks_us"][0] for answer in answers), 1),
        "mask_us": {turn: each(turn, "masks_us") for turn in turns},
        "accept_us": {turn: each(turn, "accepts_us") for turn in turns},
    }


def measure_hostile(constraints: Constraints, schema: Any) -> dict[str, Any]:
    """The time until a schema is refused or compiled, and the longest gap of a thread beside it."""
    refused = ""
    with _Gap() as gap:
        began_s = time.perf_counter()
        try:
            constraints.compile(json.dumps(schema))
        except ConstraintError as error:
            refused = error.message_for_client[:100]
        took_s = time.perf_counter() - began_s
    return {"ms": round(took_s * 1e3, 1), "refused": refused, "longest_gap_beside_ms": round(gap.longest_ms, 1)}


def start_xgrammar(folder: Path, vocab_size: int, environments: Path, clock: str) -> Contender:
    """Installs xgrammar if necessary and starts it. Raises InstallError, CrashError, OSError."""
    xgrammar.ENVIRONMENT.install(environments)
    python = xgrammar.ENVIRONMENT.python(environments).absolute()
    ends = sorted(ChatModel.load(folder).eos_token_ids)
    command = xgrammar.command(python, folder / "tokenizer.json", vocab_size, ends, clock)
    contender = Contender("xgrammar", command, ROOT, environments / "xgrammar.log", timeout_s=60.0)
    contender.start()
    return contender


def follow_with(contender: Contender) -> Follow:
    """A function that asks the process. A crash, or no answer for a minute, is a refusal."""

    def follow(schema: str, token_ids: Sequence[int]) -> Mapping[str, Any]:
        try:
            return contender.ask({"schema": schema, "token_ids": list(token_ids)})
        except CrashError as error:
            return {"refused": str(error)[:300]}

    return follow


def measure_hostile_beside(follow: Follow, schema: Any) -> dict[str, Any]:
    """The same for a library in a process of its own, without the gap."""
    began_s = time.perf_counter()
    answer = follow(json.dumps(schema), ())
    took_ms = (time.perf_counter() - began_s) * 1e3
    compile_ms = answer["first"]["compile_ms"] if "first" in answer else took_ms
    return {"ms": round(compile_ms, 1), "refused": str(answer.get("refused", ""))[:100]}


def measure(folder: Path, rounds: int, environments: Path | None, clock: str) -> dict[str, Any]:
    """All schemas with one model's vocabulary. environments: where xgrammar is installed; None: without it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab_size = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    ours = Ours(folder, vocab_size, clock)
    libraries: dict[str, Follow] = {"llguidance": ours.follow}
    versions = {"llguidance": version("llguidance")}
    opened_s, missing = {"llguidance": round(ours.load_s, 2)}, {}
    beside = None
    if environments is not None:
        try:
            beside = start_xgrammar(folder, vocab_size, environments, clock)
            assert beside.about is not None
            libraries["xgrammar"] = follow_with(beside)
            versions["xgrammar"] = f"{beside.about.version}, {beside.about.settings}"
            opened_s["xgrammar"] = round(beside.about.load_s, 2)
        except (InstallError, CrashError, OSError) as error:
            missing["xgrammar"] = str(error)
    try:
        cases = {name: measure_case(tokenizer, *case, rounds, libraries) for name, case in CASES.items()}
        hostile = {name: {"llguidance": measure_hostile(ours.constraints, case)} for name, case in HOSTILE.items()}
        if beside is not None:
            for name, case in HOSTILE.items():
                hostile[name]["xgrammar"] = measure_hostile_beside(libraries["xgrammar"], case)
    finally:
        ours.constraints.close()
        if beside is not None:
            beside.stop()
    return {
        **machine(),
        "model": folder.name,
        "vocab_size": vocab_size,
        "rounds": rounds,
        "clock": clock,
        "versions": versions,
        "missing": missing,
        "vocabulary_opened_s": opened_s,
        "cases": cases,
        "hostile": hostile,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the measurement; exit status 1 if a library that was asked for is missing from it."""
    parser = OneLineParser(
        prog="redoubt bench structured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a converted model; only its tokenizer is read")
    parser.add_argument("--rounds", type=int, default=10, help="compilations of each schema (default %(default)s)")
    parser.add_argument("--with", dest="beside", choices=("xgrammar",), help="measure this library too, in turn")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="of all but the hostile schemas")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    options = parser.parse_args(arguments)
    environments: Path | None = None
    if options.beside is not None:
        environments = options.environments.absolute()
        options.environments.mkdir(parents=True, exist_ok=True)
    result = measure(options.model, options.rounds, environments, options.clock)
    print(json.dumps(result, indent=1))
    return 1 if result["missing"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
