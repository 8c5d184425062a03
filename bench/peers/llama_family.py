"""What llama.cpp and its fork have in common: one C interface for batches, and contexts that are reused.

Only `llama_decode` is timed, one call per step with prepared arrays, so that no time of Python is included. Sampling is
not included either: random tokens are fed, which favours the peer. A context with its streams' prompts is kept for the
next round, without the decoded tokens. Standard library only; does not know the two libraries' differences.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from bench.work import CLOCKS, Work

BATCH_TOKENS = 512
KEPT_CONTEXTS = 10


class LlamaFamily(ABC):
    """A model, and a context for each number of streams, prompt and variant."""

    def __init__(self, lib: Any, threads: int, clock: str) -> None:
        """lib: the bindings' module, whose `llama_decode` and `llama_batch_*` are alike in both."""
        self.lib = lib
        self.threads = threads
        self.now_s: Callable[[], float] = CLOCKS[clock]
        self.vocab_size = 0
        self._random = random.Random(7)
        self._batch: Any = lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._contexts: dict[tuple[int, int, str], Any] = {}

    @abstractmethod
    def make_context(self, streams: int, tokens_each: int, variant: str) -> Any:
        """A context for as many streams. Raises NotSupportedError."""

    @abstractmethod
    def cut(self, context: Any, stream: int, tokens: int) -> None:
        """Removes all but the stream's first tokens."""

    @abstractmethod
    def synchronize(self, context: Any) -> None:
        """Waits until the last call is computed."""

    def measure(self, work: Work, variant: str) -> float:
        """Seconds for a prompt, or for decoding after prompts that are not timed."""
        key = (work.streams, work.context_tokens, variant)
        context = self._contexts.pop(key, None)
        fresh = context is None
        if context is None:
            if len(self._contexts) >= KEPT_CONTEXTS:
                self.lib.llama_free(self._contexts.pop(next(iter(self._contexts))))
            context = self.make_context(work.streams, work.context_tokens + 256, variant)
        self._contexts[key] = context
        if work.kind == "prefill":
            self.cut(context, 0, 0)
            if fresh:  # allocates memory and wakes the threads
                self._prefill(context, 0, min(work.context_tokens, BATCH_TOKENS))
                self.cut(context, 0, 0)
            return self._prefill(context, 0, work.context_tokens)
        for stream in range(work.streams):
            if fresh:
                self._prefill(context, stream, work.context_tokens)
            else:
                self.cut(context, stream, work.context_tokens)
        self._decode(context, work.streams, work.context_tokens)  # warm-up
        first = work.context_tokens + 1
        return sum(self._decode(context, work.streams, first + step) for step in range(work.new_tokens))

    def free_contexts(self) -> None:
        """Frees all contexts, which must happen before the model is freed."""
        for context in self._contexts.values():
            self.lib.llama_free(context)
        self._contexts.clear()

    def _prefill(self, context: Any, stream: int, tokens: int) -> float:
        return sum(
            self._run(context, [(stream, position) for position in range(begin, end)], last_logits_only=end == tokens)
            for begin in range(0, tokens, BATCH_TOKENS)
            for end in [min(begin + BATCH_TOKENS, tokens)]
        )

    def _decode(self, context: Any, streams: int, position: int) -> float:
        return self._run(context, [(stream, position) for stream in range(streams)], last_logits_only=None)

    def _run(self, context: Any, places: Sequence[tuple[int, int]], *, last_logits_only: bool | None) -> float:
        """One call for tokens at (stream, position); logits of all of them (None), of the last one, or of none."""
        batch = self._batch
        batch.n_tokens = len(places)
        for index, (stream, position) in enumerate(places):
            batch.token[index] = self._random.randrange(self.vocab_size)
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = last_logits_only is None or (last_logits_only and index == len(places) - 1)
        began = self.now_s()
        status = self.lib.llama_decode(context, batch)
        self.synchronize(context)
        seconds = self.now_s() - began
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        return seconds
