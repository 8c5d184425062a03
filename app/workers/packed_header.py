"""Reads the header of a packed model's weights: the decoder's description, the sizes of its matrices, its vectors.

The engine validates it when it loads the model. Knows no matrices, and works without `quant`, which a worker lacks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.capacity.demand import Matrices, experts_of, matrices_of
from app.engine.expert_reads import ExpertReads
from app.model_folder import WEIGHTS
from app.sealing.sealed_model import SealedModel

_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """The header's fields that a worker needs before the model is loaded."""

    decoder: Mapping[str, Any]
    """The description as in quant/families/description.py; missing fields have their defaults."""
    matrices: Matrices
    vectors: Mapping[str, tuple[int, int]]
    """Of each tensor of fp32 numbers: the offset in the file, and bytes."""

    def vector(self, files: Path | SealedModel, name: str) -> NDArray[np.float32]:
        """Reads a tensor of fp32 numbers. Raises KeyError if there is none of that name, OSError."""
        return np.frombuffer(_read(files, *self.vectors[name]), "<f4")

    @property
    def predicts(self) -> bool:
        """Whether the model has a layer of multi-token prediction."""
        return self.decoder.get("predictor") is not None

    @property
    def expert_reads(self) -> ExpertReads | None:
        """The experts' numbers that step times depend on; None: the model has no experts."""
        matrices = self.matrices
        if not matrices.experts:
            return None
        taken = matrices.expert_weights * matrices.experts_per_token / matrices.experts
        share = taken / (matrices.layer_weights + matrices.head_weights)
        return ExpertReads(matrices.experts, matrices.experts_per_token, share)


def read_header(files: Path | SealedModel) -> PackedHeader | None:
    """Reads the header of a model's weights; None for a folder without weights, as in tests."""
    if not (files / WEIGHTS).is_file():
        return None
    length = int.from_bytes(_read(files, 0, _LENGTH_BYTES), "little")
    header: Mapping[str, Any] = json.loads(_read(files, _LENGTH_BYTES, length))
    metadata: Mapping[str, str] = header["__metadata__"]
    sizes = {}
    for name, entry in json.loads(metadata["matrices"]).items():
        begin, end = header[name]["data_offsets"]
        sizes[name] = (entry["rows"] * entry["cols"], end - begin)
    decoder = json.loads(metadata["decoder"])
    experts, per_token = experts_of(decoder)
    vectors = {
        name: (_LENGTH_BYTES + length + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }
    matrices = matrices_of(sizes, experts=experts, experts_per_token=per_token, type_name="as it runs")
    return PackedHeader(decoder, matrices, vectors)


def _read(files: Path | SealedModel, offset: int, size: int) -> bytes:
    if isinstance(files, SealedModel):
        buffer = bytearray(size)
        files.read_into(WEIGHTS, offset, memoryview(buffer))
        return bytes(buffer)
    with (files / WEIGHTS).open("rb") as file:
        file.seek(offset)
        return file.read(size)
