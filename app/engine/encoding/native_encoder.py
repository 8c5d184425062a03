"""The native engine as an encoder. It only translates names, and gives tokens their positions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.encoding.head import F32
from app.engine.encoding.pieces import Piece
from kernels import _native

USUAL_STEP_TOKENS = 512
"""Measured: docs/tuning.md."""
MAX_TEXTS = 128
"""Of one batch."""

I32 = NDArray[np.int32]


class NativeEncoder:
    """Owns one `_native.Model`. Any thread may use it, one at a time."""

    def __init__(
        self,
        folder: "str | _native.ModelFiles",
        *,
        threads: int,
        max_tokens: int,
        positions: int,
        cpus: Sequence[int] = (),
        nodes: Sequence[int] = (),
        bind_weights: bool = True,
        compute_type: str = "int8",
        kv_type: str = "auto",
        weight_memory: str = "auto",
    ) -> None:
        """Loads the packed model in `folder`, or from files that are already open.

        max_tokens: the longest text. positions: of the model, after which those of a text's second part are counted; 0:
        the two parts are alike. Others, and errors, are those of `_native.Model`.
        """
        self.max_tokens = max_tokens
        self.max_step_tokens = max(USUAL_STEP_TOKENS, max_tokens)
        self.usual_step_tokens = USUAL_STEP_TOKENS
        self.max_sequences = MAX_TEXTS
        self._positions = positions
        self.model = _native.Model(
            folder,
            threads=threads,
            cpus=list(cpus),
            compute_type=compute_type,
            kv_type=kv_type,
            weight_memory=weight_memory,
            nodes=list(nodes),
            bind_weights=bind_weights,
            kv_pages=-(-self.max_step_tokens // _native.PAGE_TOKENS) + MAX_TEXTS,
            max_sequences=MAX_TEXTS,
            max_step_tokens=self.max_step_tokens,
            max_context_tokens=max_tokens,
        )
        if not self.model.is_encoder:
            raise ValueError(f"{folder}: this model is no encoder")
        self.layers = self.model.layers
        self.vocab_size = self.model.vocab_size
        self.tier: str = self.model.tier
        parts = self.tier, self.model.attention_tier, compute_type, self.model.kv_type
        self.arithmetic = " ".join((*parts, f"{len(set(nodes))} slices" if nodes else "whole"))

    def encode(self, token_ids: I32, second: I32, lengths: I32, piece: Piece) -> F32 | None:
        """See `app.engine.encoding.encoder.EncoderModel`."""
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(token_ids.size, dtype=np.int32) - np.repeat(starts, lengths).astype(np.int32)
        if self._positions:
            positions += self._positions * (positions >= np.repeat(second, lengths)).astype(np.int32)
        return self.model.encode(
            token_ids,
            positions,
            lengths,
            piece.first_layer,
            piece.end_layer,
            piece.first_row,
            piece.end_row,
            piece.part == "keys",
        )

    def release_memory(self) -> None:
        self.model.release_memory()
