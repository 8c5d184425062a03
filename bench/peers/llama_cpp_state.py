"""llama.cpp's saved sequences beside ours in `bench.memory`: what its first token takes, computed or read from a file.

`llama_state_seq_save_file` and `llama_state_seq_load_file` are what its server's slots do with `action=save` and
`action=restore`; the files are neither encrypted nor checked. Run as a module by llama.cpp's interpreter, this file is
the process that `bench.process` controls: each order has a number of tokens and a folder, the answer the seconds.
Standard library only at import.
"""

import ctypes
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers import parse_process_options
from bench.peers.llama_cpp import PEER, LlamaCpp
from bench.peers.llama_family import BATCH_TOKENS
from bench.work import take_stdout

VARIANT = "flash_attention=on kv=unified"


def command(environments: Path, model: Path, threads: int, context_tokens: int) -> Sequence[str]:
    """The command line of the process, in the environment of `PEER`."""
    words = PEER.command(environments, model, threads, "wall", context_tokens)
    return [f"{word}_state" if word == f"bench.peers.{PEER.name}" else word for word in words]


class SavedSequences(LlamaCpp):
    """One sequence, saved to a file and restored."""

    def __init__(self, model: str, threads: int, clock: str, context_tokens: int) -> None:
        super().__init__(model, threads, clock)
        self._context = self.make_context(1, context_tokens, VARIANT)
        self._capacity = context_tokens
        self._rng = random.Random(1)

    def round(self, tokens: int, folder: Path) -> dict[str, float]:
        """Seconds to the first token and of saving, and the file's bytes. Raises RuntimeError if the answers differ."""
        prompt = [self._rng.randrange(self.vocab_size) for _ in range(tokens)]
        path = folder / "sequence.bin"
        seconds: dict[str, float] = {}
        self.cut(self._context, 0, 0)
        seconds["cold"], answer = self._first_token(prompt, 0)
        self.cut(self._context, 0, tokens - 1)
        seconds["hot"], again = self._first_token(prompt, tokens - 1)
        answers = [answer, again]
        array = (ctypes.c_int * tokens)(*prompt)
        began = self.now_s()
        written = self.lib.llama_state_seq_save_file(self._context, str(path).encode(), 0, array, tokens)
        seconds["saved"] = self.now_s() - began
        if not written:
            raise RuntimeError(f"llama.cpp can't save to {path}")
        for kind in ("restored", "restored_from_disk"):
            if kind == "restored_from_disk":
                drop_page_cache(path)
            self.cut(self._context, 0, 0)
            began = self.now_s()
            self._load(path)
            self.cut(self._context, 0, tokens - 1)
            restoring_s = self.now_s() - began
            taken_s, token = self._first_token(prompt, tokens - 1)
            seconds[kind] = restoring_s + taken_s
            answers.append(token)
        path.unlink()
        return {**seconds, "file_bytes": written, "same_answers": float(len(set(answers)) == 1)}

    def _load(self, path: Path) -> None:
        tokens, count = (ctypes.c_int * self._capacity)(), ctypes.c_size_t()
        if not self.lib.llama_state_seq_load_file(
            self._context, str(path).encode(), 0, tokens, self._capacity, ctypes.byref(count)
        ):
            raise RuntimeError(f"llama.cpp can't restore {path}")

    def _first_token(self, prompt: Sequence[int], begin: int) -> tuple[float, int]:
        """Computes the prompt from there on; the seconds, and the likeliest token."""
        began = self.now_s()
        for first in range(begin, len(prompt), BATCH_TOKENS):
            part = prompt[first : first + BATCH_TOKENS]
            batch = self._batch
            batch.n_tokens = len(part)
            for index, token in enumerate(part):
                batch.token[index], batch.pos[index] = token, first + index
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
                batch.logits[index] = first + index == len(prompt) - 1
            if self.lib.llama_decode(self._context, batch) != 0:
                raise RuntimeError("llama_decode has failed")
        self.synchronize(self._context)
        seconds = self.now_s() - began
        logits = self.lib.llama_get_logits_ith(self._context, -1)
        return seconds, max(range(self.vocab_size), key=lambda token: logits[token])


def drop_page_cache(path: Path) -> None:
    """Tells the system to forget the file's contents."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    options = parse_process_options()
    answers = take_stdout()
    engine: Any = SavedSequences(options.model, options.threads, options.clock, options.context)
    print(json.dumps(asdict(engine.about())), flush=True, file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(engine.round(order["tokens"], Path(order["folder"]))), flush=True, file=answers)


if __name__ == "__main__":
    main()
