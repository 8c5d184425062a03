"""xgrammar, a library that makes masks from JSON schemas, beside ours in `bench.structured`.

The library computes most of each mask while it compiles. Run as a module by its own interpreter, this file is the
process: it reads one JSON line for each schema, `{"schema": text, "token_ids": [...]}`, and answers with the times of
compiling and following it, or with the reason for a refusal. Schemas are compiled by one thread and without a cache,
with the same white space as ours. Standard library only at import.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers import Environment
from bench.structured_cases import walk
from bench.work import CLOCKS, About, take_stdout

ENVIRONMENT = Environment(name="xgrammar", steps=(("torch==2.13.0",), ("xgrammar==0.2.8",)))


def command(python: Path, tokenizer: Path, vocab_size: int, end_token_ids: Sequence[int], clock: str) -> list[str]:
    """Starts the process."""
    ends = ",".join(map(str, end_token_ids))
    return [str(python), "-m", "bench.peers.xgrammar", str(tokenizer.absolute()), str(vocab_size), ends, clock]


def vocabulary(tokenizer: Path, vocab_size: int) -> list[str]:
    """The tokens' texts in the byte-level alphabet; tokens without text, which are never allowed, have none."""
    values = json.loads(tokenizer.read_text(encoding="utf-8"))
    texts = [""] * vocab_size
    for text, token in values["model"]["vocab"].items():
        texts[token] = text
    for added in values["added_tokens"]:
        texts[added["id"]] = "" if added["special"] else added["content"]
    return texts


class XGrammar:
    """The library over one vocabulary."""

    def __init__(self, tokenizer: Path, vocab_size: int, end_token_ids: list[int], clock: str) -> None:
        """Reads the vocabulary."""
        self._library: Any = import_module("xgrammar")  # in its own environment only
        self._now_s = CLOCKS[clock]
        began_s = self._now_s()
        self._vocabulary = self._library.TokenizerInfo(
            vocabulary(tokenizer, vocab_size),
            self._library.VocabType.BYTE_LEVEL,
            vocab_size=vocab_size,
            stop_token_ids=end_token_ids,
        )
        self.load_s = self._now_s() - began_s
        self._mask: Any = self._library.allocate_token_bitmask(1, vocab_size)
        self._words: Any = self._mask[0].numpy()

    def follow(self, schema: str, token_ids: list[int]) -> dict[str, Any]:
        """Compiles a schema twice and feeds an output through each. Raises ValueError, RuntimeError."""
        compiler = self._library.GrammarCompiler(self._vocabulary, max_threads=1)
        answer: dict[str, Any] = {}
        for name in ("first", "again"):
            began_s = self._now_s()
            compiled = compiler.compile_json_schema(schema, any_whitespace=False, strict_mode=False)
            matcher = self._library.GrammarMatcher(compiled)
            compile_ms = (self._now_s() - began_s) * 1e3
            masks_us, accepts_us = walk(
                token_ids,
                partial(matcher.fill_next_token_bitmask, self._mask),
                lambda token: self._words[token // 32] >> (token % 32) & 1,
                matcher.accept_token,
                self._now_s,
            )
            answer[name] = {"compile_ms": compile_ms, "masks_us": masks_us, "accepts_us": accepts_us}
        return answer


def main() -> None:
    """The process, in the library's environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("vocab_size", type=int)
    parser.add_argument("end_token_ids")
    parser.add_argument("clock", choices=tuple(CLOCKS))
    options = parser.parse_args()
    answers = take_stdout()
    ends = [int(end) for end in options.end_token_ids.split(",")]
    library = XGrammar(options.tokenizer, options.vocab_size, ends, options.clock)
    about = About(
        version=f"xgrammar {version('xgrammar')}",
        settings="compiled by one thread, any_whitespace=False, strict_mode=False",
        variants=("",),
        load_s=library.load_s,
    )
    print(json.dumps(asdict(about)), flush=True, file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = library.follow(order["schema"], order["token_ids"])
        except (ValueError, RuntimeError) as error:
            answer = {"refused": str(error)[:300]}
        print(json.dumps(answer), flush=True, file=answers)


if __name__ == "__main__":
    main()
