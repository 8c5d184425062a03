"""A family: how a Hugging Face configuration becomes a description, and stored tensors the engine's.

An entry is data and two small functions. Files are read elsewhere (`sources`); nothing here opens one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.families.description import Decoder

Config = Mapping[str, Any]
"""A config.json as published."""
_MOST_PREDICTING = 16
TensorRole = Literal["embedding", "head", "linear", "router", "table", "vector"]
"""table: rows that tokens pick, as an embedding's, that are no head."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a stored tensor (of a vector: elements), which the engine gets as values * scale + offset.

    Of a vector, all numbers of a stored tensor of more dimensions count as its elements.

    A stored tensor of three dimensions is a stack, and so is a matrix of biases; `index` says which matrix or vector of
    it is meant.
    """

    name: str
    rows: slice | NDArray[np.int64] | None = None
    """Rows to take, in the engine's order; None: all. Indices apply after `transposed`."""
    index: int | None = None
    transposed: bool = False
    """Whether the file has inputs first: [cols, rows]."""
    scale: float = 1.0
    offset: float = 0.0
    normalized: bool = False
    """Whether each row is first divided by its Euclidean length."""
    cols: slice | NDArray[np.int64] | None = None
    """Inputs to take from each row, in the engine's order; None: all. Indices apply after `transposed`."""
    exponential: bool = False
    """Whether each number x of a vector is first replaced by exp(x)."""
    padding: int = 0
    """Rows of the stored matrix, or numbers of a vector, beside those that are taken, that are no part of the model."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An engine tensor, [rows, cols] of a matrix or [n] of a vector, with the stored rows that it is made of.

    Experts are one matrix: the first expert's rows, then the next one's.
    """

    role: TensorRole
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    count: int = 1
    """Number of experts stacked in the matrix."""


@dataclass(frozen=True, slots=True)
class StoredPredictor:
    """How checkpoints name the tensors of multi-token prediction. Of several such layers the first one is used.

    In every name {} is the number of the model's layers.
    """

    layer: str
    """Prefix of the layer's tensors."""
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    hidden_first: bool = False
    """Whether the projection's inputs begin with the hidden state."""
    norm_offset: float = 0.0
    """Added to the weights of the three norms."""


@dataclass(frozen=True, slots=True)
class Family:
    """One or several model types that differ only in their configuration."""

    model_types: tuple[str, ...]
    architecture: str
    """The class in transformers that config.json names."""
    describe: Callable[[Config, str], Decoder]
    """The configuration and the name of its file -> the description. Raises SourceError for a key that is missing or
    of a wrong type, UnsupportedModelError for an option that this engine does not run; both name file and key."""
    tensors: Callable[[Config, Decoder], Mapping[str, Tensor]]
    """Tensors by the engine's names, in the order of the forward pass (see `names`)."""
    ignored: tuple[str, ...] = ()
    """Patterns (fnmatch) of stored tensors that the engine does not need: buffers, other modalities."""
    alternatives: tuple[Callable[[Config, Decoder], Mapping[str, Tensor]], ...] = ()
    """Alternatives to `tensors`, for checkpoints that store them differently. Of `tensors` and these, the first one is
    used whose stored tensors a checkpoint has."""
    brings_code: bool = False
    """Whether its checkpoints name Python code of their own (`auto_map`), which is never run."""
    predicts: bool = False
    """Whether checkpoints may have multi-token prediction layers numbered after the model's own."""
    predictor: StoredPredictor | None = None
    """Where those layers are, if they can be used for drafts (quant.families.predictors)."""
    head: str = "lm_head.weight"
    """Name of the stored output head. A checkpoint without it has a tied head, if the configuration does not say."""

    def unused(self, config: Config, decoder: Decoder) -> tuple[str, ...]:
        """Patterns (fnmatch) of a model's stored tensors that the engine does not need."""
        first, count = len(decoder.layers), 0
        if self.predicts:
            stated = config.get("num_nextn_predict_layers", config.get("num_mtp_layers"))
            count = min(stated, _MOST_PREDICTING) if isinstance(stated, int) else 1
        return self.ignored + tuple(f"model.layers.{number}.*" for number in range(first, first + count))
