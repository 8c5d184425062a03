"""The folder of an EAGLE-3 head, as a Source: without a tokenizer, and without an embedding, which is the model's.

The head's rows come in the order of their tokens. Knows no numbers of a layer (`families.eagle`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quant.errors import SourceError, TensorError, UnsupportedModelError
from quant.families.eagle import ARCHITECTURE, describe_head, head_config, head_tensors
from quant.families.names import DRAFT_TOKENS
from quant.sources.assembly import assemble
from quant.sources.file_rows import row_reader
from quant.sources.hf_folder import float_tensors, shards_of, stored_in
from quant.sources.packed_layers import StoredIn
from quant.sources.source import Source, SourceTensor

_HEAD: Final = "lm_head.weight"
_TO_MODEL: Final = "d2t"
_FROM_MODEL: Final = "t2d"
_EMBEDDING: Final = "embed_tokens.weight"
_NOTE: Final = "The head's own copy of the embedding is left out: it reads that of the model it drafts for."


def open_eagle_head(folder: Path, raw_config: Mapping[str, Any]) -> Source:
    """Opens the checkpoint of a head. Raises SourceError (damaged, incomplete) or UnsupportedModelError."""
    path = folder / "config.json"
    config = head_config(raw_config)
    if config.get("quantization_config"):
        raise UnsupportedModelError(f"{path}: the head is already quantized; use the original")
    shards = shards_of(folder)
    stored = {name.removeprefix("model."): each for name, each in stored_in(shards).items()}
    numbers = stored.pop(_TO_MODEL, None)
    stored.pop(_FROM_MODEL, None)  # says the same
    rows = stored[_HEAD].tensor.shape[0] if _HEAD in stored else 0
    decoder = describe_head(config, str(path), rows)
    tokens = _tokens(numbers, rows, decoder.vocab_size, folder)
    tensors = assemble(
        float_tensors(stored), head_tensors(decoder, stored, tokens), (_EMBEDDING, "*rotary_emb.inv_freq"), str(folder)
    )
    if rows:
        rising = np.sort(tokens).astype(np.float32)  # exact: a vocabulary has fewer than 2^24 tokens
        made = SourceTensor(DRAFT_TOKENS, rising.shape, "fp32", 0, lambda begin, end: rising[begin:end])
        tensors[DRAFT_TOKENS] = made
    return Source(
        name=folder.resolve().name,
        config={**{key: value for key, value in config.items() if key != "auto_map"}, "architectures": [ARCHITECTURE]},
        decoder=decoder,
        tensors=tensors,
        files=(path, *shards),
        write_tokenizer=lambda _: None,
        notes=(_NOTE,) if _EMBEDDING in stored else (),
    )


def _tokens(numbers: StoredIn | None, rows: int, vocab_size: int, folder: Path) -> NDArray[np.int64]:
    """The model's token of each of the head's rows: row i's is i + d2t[i].

    Raises TensorError, and SourceError for rows of which nothing says what they are.
    """
    if numbers is None:
        if rows not in (0, vocab_size):
            raise SourceError(f"{folder}: its head has {rows} rows, and no {_TO_MODEL} says which tokens they are")
        return np.arange(rows, dtype=np.int64)
    if numbers.tensor.dtype != "I64" or numbers.tensor.shape != (rows,):
        raise TensorError(_TO_MODEL, f"is {numbers.tensor.dtype} {numbers.tensor.shape}, not I64 {(rows,)}")
    offsets = row_reader(numbers.path, numbers.tensor.offset, 8)(0, rows).view(np.int64).reshape(-1)
    tokens: NDArray[np.int64] = np.arange(rows, dtype=np.int64) + offsets
    if rows and (tokens.min() < 0 or tokens.max() >= vocab_size or len(np.unique(tokens)) < rows):
        raise TensorError(_TO_MODEL, f"names tokens twice, or others than the model's {vocab_size}")
    return tokens
