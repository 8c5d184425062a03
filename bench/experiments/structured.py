"""Measures structured output: the time of a mask over the vocabulary, of accepting a token, and of compiling a schema.

Outputs that match each schema are fed token by token, as the engine does it. "first" is a request with a schema that
was just compiled; "again" is the next request with the same one. A schema is compiled in a thread of its own; to
measure how much that delays other threads, a thread that only counts records its longest gap between two turns.

    python -m bench.experiments.structured MODEL
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.messages.failures import ConstraintError
from app.workers.constraints import Constraints
from bench.common import OneLineParser, machine
from bench.experiments.structured_cases import CASES, HOSTILE


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


def follow(
    constraints: Constraints, mask: NDArray[np.uint32], schema: str, token_ids: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Compiles a schema twice and feeds an output through each. Raises ValueError, ConstraintError."""
    answer = {}
    for turn in ("first", "again"):
        began_s = time.perf_counter()
        constraint = constraints.compile(schema)
        compile_ms = (time.perf_counter() - began_s) * 1e3
        masks_us, accepts_us = [], []
        for token in token_ids:
            began_s = time.perf_counter()
            constraint.fill_mask(mask)
            masks_us.append((time.perf_counter() - began_s) * 1e6)
            if not mask[token // 32] >> np.uint32(token % 32) & 1:
                raise ValueError(f"token {token} does not follow the schema")
            began_s = time.perf_counter()
            constraint.accept(token)
            accepts_us.append((time.perf_counter() - began_s) * 1e6)
        answer[turn] = {"compile_ms": compile_ms, "masks_us": masks_us, "accepts_us": accepts_us}
    return answer


def summary(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The times of all rounds."""

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one JSON object: all schemas with one model's vocabulary, compiled anew under another title each round."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a converted model; only its tokenizer is read")
    parser.add_argument("--rounds", type=int, default=10, help="compilations of each schema (default %(default)s)")
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    vocab_size = int(json.loads((options.model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    constraints = Constraints(options.model, vocab_size)
    mask: NDArray[np.uint32] = np.zeros(-(-vocab_size // 32), np.uint32)
    cases = {}
    for name, (schema, value) in CASES.items():
        ids = tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False).ids
        texts = [json.dumps({**schema, "title": f"round {number}"}) for number in range(options.rounds)]
        cases[name] = {"tokens": len(ids)} | summary([follow(constraints, mask, text, ids) for text in texts])
    hostile = {name: measure_hostile(constraints, schema) for name, schema in HOSTILE.items()}
    constraints.close()
    about = {"model": options.model.name, "rounds": options.rounds, "llguidance": version("llguidance")}
    print(json.dumps({**machine(), **about, "cases": cases, "hostile": hostile}, indent=1))


if __name__ == "__main__":
    main()
