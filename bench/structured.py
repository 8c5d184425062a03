"""What structured output costs a token: the time of a mask over the vocabulary, of accepting a token, of compiling.

Outputs that follow each schema are walked token by token, as the engine does it. "first": a request's way through a
schema that was just compiled; "again": the next request with the same one. Compiling runs in a thread of its own, so
what the engine would feel of it is measured too: the longest gap between the turns of a thread that only counts.
Run: `redoubt bench structured MODEL`; prints one JSON object.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from app.constraints import Constraints
from app.engine.types import ConstraintError, TokenConstraint
from kernels import _native

_TEXT = "A quiet street by the sea, where old boats lie on the sand and gulls wait for the evening's catch."
_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["new", "known", "friend"]}},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
_TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["label", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CASES: dict[str, tuple[Any, Any]] = {
    "any object": (
        {"type": "object"},
        {"title": "Notes", "body": _TEXT, "numbers": [1, 2.5, -3e4], "more": {"a": None}},
    ),
    "person": (_PERSON, {"name": "Jane Doe", "age": 30, "email": "jane@example.org", "tags": ["new", "friend"]}),
    "people": (
        {"type": "array", "items": _PERSON},
        [{"name": f"Jane {i}", "age": 30 + i, "email": None, "tags": ["known"]} for i in range(8)],
    ),
    "long text": (
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        {"text": " ".join([_TEXT] * 4)},
    ),
    "bounded text": (
        {"type": "object", "properties": {"text": {"type": "string", "maxLength": 200}}, "required": ["text"]},
        {"text": _TEXT},
    ),
    "date and pattern": (
        {
            "type": "object",
            "properties": {"day": {"type": "string", "format": "date"}, "code": {"pattern": "^[A-Z]{3}-[0-9]{4}$"}},
            "required": ["day", "code"],
            "additionalProperties": False,
        },
        {"day": "2026-11-21", "code": "ABC-1234"},
    ),
    "tree": (
        _TREE,
        {"label": "root", "children": [{"label": _TEXT[:30], "children": []}, {"label": "b", "children": []}]},
    ),
    "a call of one of 32 functions": (
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"name": {"const": f"function_{i}"}, "arguments": _PERSON},
                        "required": ["name", "arguments"],
                        "additionalProperties": False,
                    }
                    for i in range(32)
                ]
            },
        },
        [{"name": "function_17", "arguments": {"name": "Jo", "age": 3, "email": None, "tags": []}}],
    ),
}
HOSTILE: dict[str, Any] = {
    "catastrophic pattern": {"type": "string", "pattern": "^(a+)+$"},
    "states without end": {"type": "string", "pattern": "^(.*a.{20}b){50}$"},
    "a million characters": {"type": "string", "minLength": 100_000, "maxLength": 1_000_000},
    "intersections": {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(8)]} for i in range(8)]},
    "a thousand fields": {"type": "object", "properties": {f"field{i}": {"type": "string"} for i in range(1000)}},
    "a thousand names": {"enum": [f"value number {i}" for i in range(1000)]},
}


class _Gap:
    """The longest time for which a thread that does nothing but count did not get its turn."""

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


def walk(constraint: TokenConstraint, token_ids: Sequence[int], mask: Any) -> tuple[list[float], list[float]]:
    """Microseconds of each mask and of each accepted token. Raises ValueError where the output is not allowed."""
    masks_us, accepts_us = [], []
    for token in token_ids:
        began_s = time.perf_counter()
        constraint.fill_mask(mask)
        filled_s = time.perf_counter()
        if not mask[token // 32] >> np.uint32(token % 32) & 1:
            raise ValueError(f"token {token} does not follow the schema")
        accepting_s = time.perf_counter()
        constraint.accept(token)
        masks_us.append((filled_s - began_s) * 1e6)
        accepts_us.append((time.perf_counter() - accepting_s) * 1e6)
    return masks_us, accepts_us


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the tails, and the worst."""
    points = np.percentile(values, [50, 90, 99, 100])
    return {name: round(float(value), 1) for name, value in zip(("p50", "p90", "p99", "max"), points, strict=True)}


def measure_case(
    constraints: Constraints, tokenizer: Tokenizer, schema: Any, value: Any, rounds: int
) -> dict[str, Any]:
    """One schema: every round compiles it anew, under a title of its own."""
    vocab_size = constraints.vocab_size
    token_ids = tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False).ids
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    compile_ms: list[float] = []
    again_ms: list[float] = []
    first: tuple[list[float], list[float]] = ([], [])
    again: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        text = json.dumps({**schema, "title": f"round {number}"})
        for times, walks in ((compile_ms, first), (again_ms, again)):
            began_s = time.perf_counter()
            constraint = constraints.compile(text)
            times.append((time.perf_counter() - began_s) * 1e3)
            for all_us, some_us in zip(walks, walk(constraint, token_ids, mask), strict=True):
                all_us += some_us
    return {
        "tokens": len(token_ids),
        "compile_ms": round(statistics.median(compile_ms), 2),
        "compiled_before_ms": round(statistics.median(again_ms), 3),
        "mask_us": {"first": spread(first[0]), "again": spread(again[0])},
        "accept_us": {"first": spread(first[1]), "again": spread(again[1])},
    }


def measure_hostile(constraints: Constraints, schema: Any) -> dict[str, Any]:
    """Until it is refused or compiled, and what a thread beside it felt."""
    refused = ""
    with _Gap() as gap:
        began_s = time.perf_counter()
        try:
            constraints.compile(json.dumps(schema))
        except ConstraintError as error:
            refused = error.told[:100]
        took_s = time.perf_counter() - began_s
    return {"ms": round(took_s * 1e3, 1), "refused": refused, "longest_gap_beside_ms": round(gap.longest_ms, 1)}


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """All schemas on one model's vocabulary."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab_size = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    began_s = time.perf_counter()
    constraints = Constraints(folder, vocab_size)
    constraints.compile('{"type": "null"}')  # waits for the vocabulary
    opened_s = time.perf_counter() - began_s
    cases = {name: measure_case(constraints, tokenizer, *case, rounds) for name, case in CASES.items()}
    hostile = {name: measure_hostile(constraints, schema) for name, schema in HOSTILE.items()}
    constraints.close()
    return {
        "cpu": _native.cpu_model(),
        "model": folder.name,
        "vocab_size": vocab_size,
        "rounds": rounds,
        "vocabulary_opened_s": round(opened_s, 2),
        "cases": cases,
        "hostile": hostile,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the measurement."""
    parser = argparse.ArgumentParser(
        prog="redoubt bench structured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a converted model; only its tokenizer is read")
    parser.add_argument("--rounds", type=int, default=10, help="compilations of each schema (default %(default)s)")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.model, options.rounds), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
