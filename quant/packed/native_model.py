"""Runs a packed model on a few sequences: for scoring texts and for `generate`.

One call at a time, one text after another; the service's batching is in `app.engine` and not known here. Every sequence
has its own KV pages; with `branches` several sequences read the pages of the first one.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from kernels import _native
from quant.packed.state_table import MOST_PAGES, TextStates

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

STEP_TOKENS: Final = 256
"""Tokens of one forward pass: limits the memory of logits, and changes no result."""


def available_threads() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


class NativeModel:
    """The native engine on a packed folder. Not thread-safe."""

    def __init__(
        self,
        folder: Path,
        *,
        context_tokens: int,
        branches: int = 0,
        threads: int | None = None,
        compute_type: str = "int8",
        kv_type: str = "auto",
        weight_memory: str = "auto",
    ) -> None:
        """Loads the model. context_tokens: the most tokens of a sequence; branches: how many run side by side.

        Raises `_native.PackedFileError`, ValueError naming the argument, OSError.
        """
        self._pages_each = -(-context_tokens // _native.PAGE_TOKENS)
        self.context_tokens = context_tokens
        self._branches = branches
        sequences = 1 + branches
        self.native = _native.Model(
            str(folder),
            threads=available_threads() if threads is None else threads,
            compute_type=compute_type,
            kv_type=kv_type,
            weight_memory=weight_memory,
            kv_pages=self._pages_each * sequences,
            max_sequences=sequences,
            max_step_tokens=max(STEP_TOKENS, sequences),
            max_context_tokens=context_tokens,
            state_pages=MOST_PAGES * sequences,
        )
        # With recurrent states there are two page tables: of KV pages, and of state pages.
        tables = self.native.page_table.reshape(-1, sequences, self._pages_each)
        self._kv_table, self._state_table = tables[0], tables[-1]
        self._states = [
            TextStates(range(slot * MOST_PAGES, (slot + 1) * MOST_PAGES))
            for slot in range(sequences if self.native.has_states else 0)
        ]
        self.vocab_size = self.native.vocab_size
        self._own_pages = np.arange(self._pages_each * sequences, dtype=np.int32).reshape(sequences, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._kv_table, self._state_table  # views
        del self.native  # ends its threads and frees its memory

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, F32]]:
        """Yields (begin, logits [n, vocab_size]) of tokens [begin, begin + n) of a new sequence, in order."""
        self._kv_table[0] = self._own_pages[0]
        for begin in range(0, len(ids), STEP_TOKENS):
            part = ids[begin : begin + STEP_TOKENS]
            yield begin, self.native.logits(*self._arrays([part], [0], [begin]))

    def prefill(self, ids: Sequence[int], begin: int = 0) -> None:
        """Computes the keys and values of `ids`, which follow the first `begin` tokens of the sequence."""
        self._kv_table[0] = self._own_pages[0]
        for start in range(0, len(ids), STEP_TOKENS):
            part = ids[start : start + STEP_TOKENS]
            self.native.step(*self._arrays([part], [0], [begin + start]), [None])

    def branches(self, context_tokens: int, branches: Sequence[Sequence[int]]) -> Iterator[F32]:
        """Logits [n, vocab_size] of each branch's n tokens, which all follow the same prefilled `context_tokens`.

        The prefilled sequence does not change. The model must have been loaded with `branches`.
        """
        width = self._branches
        assert width, "made without branches"
        for first in range(0, len(branches), width):
            group = branches[first : first + width]
            slots = [self._branch(number + 1, context_tokens) for number in range(len(group))]
            if sum(map(len, group)) <= STEP_TOKENS:
                together = self.native.logits(*self._arrays(group, slots, [context_tokens] * len(group)))
                yield from np.split(together, np.cumsum([len(branch) for branch in group])[:-1])
                continue
            for slot, branch in zip(slots, group, strict=True):
                yield self._long_branch(slot, context_tokens, branch)

    def _long_branch(self, slot: int, context_tokens: int, branch: Sequence[int]) -> F32:
        parts = []
        for begin in range(0, len(branch), STEP_TOKENS):
            part = branch[begin : begin + STEP_TOKENS]
            parts.append(self.native.logits(*self._arrays([part], [slot], [context_tokens + begin])))
        return np.concatenate(parts)

    def generate(
        self, prompt: Sequence[int], sampler: _native.Sampler, max_new_tokens: int, stop_ids: frozenset[int]
    ) -> Iterator[int]:
        """Yields up to `max_new_tokens` tokens after a prompt of at least one token; a stop token ends the output."""
        if not prompt or len(prompt) + max_new_tokens > self.context_tokens:
            raise ValueError(f"a prompt of {len(prompt)} and {max_new_tokens} new tokens: not 1 to the context's"
                             f" {self.context_tokens}")  # fmt: skip
        self.prefill(prompt[:-1])
        token, position = prompt[-1], len(prompt) - 1
        for _ in range(max_new_tokens):
            token = int(self.native.step(*self._arrays([[token]], [0], [position]), [sampler])[0])
            position += 1
            yield token
            if token in stop_ids:
                return

    def _branch(self, slot: int, context_tokens: int) -> int:
        """Points a slot at the first sequence's full pages and at a copy of its last, partly filled page."""
        full, rest = divmod(context_tokens, _native.PAGE_TOKENS)
        pages = self._own_pages[slot].copy()
        pages[:full] = self._own_pages[0, :full]
        if rest:
            self.native.copy_page(int(self._own_pages[0, full]), int(pages[full]))
        self._kv_table[slot] = pages
        if self._states:
            self._states[slot].follow(self._states[0], context_tokens, self.native)
        return slot

    def _arrays(
        self, parts: Sequence[Sequence[int]], slots: Sequence[int], begins: Sequence[int]
    ) -> tuple[I32, I32, I32, I32, I32]:
        if self._states:
            for slot, part, begin in zip(slots, parts, begins, strict=True):
                self._states[slot].fill(self._state_table[slot], begin, begin + len(part))
        ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
        positions = np.concatenate(
            [np.arange(begin, begin + len(part), dtype=np.int32) for part, begin in zip(parts, begins, strict=True)]
        )
        lengths = np.array([len(part) for part in parts], np.int32)
        return ids, positions, np.array(slots, np.int32), lengths, np.array(begins, np.int32)
