"""Runs one layer on windows of hidden states in the engine, and returns the activations of its stages.

Knows neither how they are used nor where the weights come from.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kernels import _native
from quant.calibration.layer_file import LayerFile
from quant.codes.matrix import F32
from quant.packed.state_table import MOST_PAGES, TextStates

STEP_TOKENS: Final = 2048
"""This many rows at a time reuse the weights well, and their activations take little memory."""


class LayerEngine:
    """Runs one layer on windows of a fixed number of tokens. Not thread-safe.

    exact: computes with fp32 activations, keys and values; otherwise with int8 ones, as the service does on any
    processor.
    """

    def __init__(self, layer: LayerFile, window_tokens: int, *, exact: bool) -> None:
        self._tokens = window_tokens
        self._windows = max(1, STEP_TOKENS // window_tokens)
        pages = -(-window_tokens // _native.PAGE_TOKENS)
        self._native = _native.Model(
            layer,
            threads=len(os.sched_getaffinity(0)),
            compute_type="fp32" if exact else "int8",
            kv_type="fp32" if exact else "int16",
            kv_pages=pages * self._windows,
            max_sequences=self._windows,
            max_step_tokens=self._windows * window_tokens,
            max_context_tokens=window_tokens,
            state_pages=MOST_PAGES * self._windows,
        )
        tables = self._native.page_table.reshape(-1, self._windows, pages)
        tables[0] = np.arange(pages * self._windows, dtype=np.int32).reshape(self._windows, -1)
        if self._native.has_states:
            for window, row in enumerate(tables[-1]):
                TextStates(range(window * MOST_PAGES, (window + 1) * MOST_PAGES)).fill(row, 0, window_tokens)

    def activations(self, hidden: F32, wanted: Sequence[str]) -> Iterator[tuple[slice, Mapping[str, NDArray[Any]]]]:
        """Yields slices of windows with their activations, by the names in `_native.Model.layer_activations`.

        hidden: the layer's input, [windows, tokens, hidden]. Only what `wanted` needs is computed.
        """
        for begin in range(0, len(hidden), self._windows):
            part = slice(begin, min(begin + self._windows, len(hidden)))
            count = part.stop - begin
            positions = np.tile(np.arange(self._tokens, dtype=np.int32), count)
            rows = np.ascontiguousarray(hidden[part]).reshape(count * self._tokens, -1)
            lengths = np.full(count, self._tokens, np.int32)
            slots = np.arange(count, dtype=np.int32)
            yield part, self._native.layer_activations(rows, positions, slots, lengths, wanted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._native  # ends its threads and frees its memory
