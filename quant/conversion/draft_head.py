"""A smaller output head for drafts, of the likeliest tokens.

A draft is checked by the whole head, so a token that the smaller one lacks costs a draft and never changes a text.
Method: Zhao et al. (2025, "FR-Spec"). The likeliest tokens are those that the calibration text has most often, and
then those of the lowest ids, because tokenizers number tokens as they merge them, by frequency. Knows neither files nor
formats.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quant.calibration.text import token_counts
from quant.codes.matrix import F32, QuantizedMatrix
from quant.families.names import DRAFT_HEAD, DRAFT_TOKENS, EMBEDDING, HEAD
from quant.sources.assembly import picked, stacked
from quant.sources.source import Source, SourceTensor

DRAFT_HEAD_TOKENS: Final = 32_000
LEAST_VOCABULARY: Final = 2 * DRAFT_HEAD_TOKENS
"""For smaller ones a head of its own saves too little."""
_ROWS: Final = 256


def with_draft_head(checkpoint: Source, calibration_text: Path | None) -> Source:
    """The checkpoint with a head for drafts, if it has a predictor and a large vocabulary.

    Raises SourceError for a calibration text that can't be read.
    """
    decoder, predictor = checkpoint.decoder, checkpoint.decoder.predictor
    if predictor is None or predictor.eagle or decoder.vocab_size < LEAST_VOCABULARY:
        return checkpoint
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.write_tokenizer(Path(folder))
        counts = token_counts(Path(folder), calibration_text, decoder.vocab_size)
    tokens = likeliest(counts, DRAFT_HEAD_TOKENS)
    head = checkpoint.tensors[EMBEDDING if decoder.tied_head else HEAD]
    own = {DRAFT_HEAD: _rows_of(head, tokens), DRAFT_TOKENS: _numbers(tokens)}
    return replace(
        checkpoint,
        decoder=replace(decoder, predictor=replace(predictor, head_tokens=len(tokens))),
        tensors={**checkpoint.tensors, **own},
    )


def likeliest(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The `most` tokens of the largest counts, rising; among equal ones those of the lowest ids."""
    return np.sort(np.argsort(-counts, kind="stable")[:most])


def _rows_of(head: SourceTensor, tokens: NDArray[np.int64]) -> SourceTensor:
    def read(begin: int, end: int) -> F32 | QuantizedMatrix:
        parts = []
        for first in range(begin, end, _ROWS):  # tokens rise, but there may be many others between them
            wanted = tokens[first : min(first + _ROWS, end)]
            least = int(wanted[0])
            parts.append(picked(head.read(least, int(wanted[-1]) + 1), wanted - least))
        codes = [part for part in parts if isinstance(part, QuantizedMatrix)]
        return stacked(codes) if codes else np.concatenate([part for part in parts if isinstance(part, np.ndarray)])

    return replace(head, name=DRAFT_HEAD, shape=(len(tokens), head.shape[1]), read=read)


def _numbers(tokens: NDArray[np.int64]) -> SourceTensor:
    values = tokens.astype(np.float32)  # exact: a vocabulary has fewer than 2^24 tokens
    return SourceTensor(DRAFT_TOKENS, values.shape, "fp32", 0, lambda begin, end: values[begin:end])
