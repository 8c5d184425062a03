"""One layer of a model as a packed file in memory, which the engine loads like any other model.

So a model of any size is computed layer by layer. Its embedding is one unused row: the layer's inputs come from the
caller. Knows neither how weights are chosen nor what is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32, U8
from quant.families.description import Decoder
from quant.families.names import EMBEDDING
from quant.packed.packed_file import FILE_NAME, PackedPlan
from quant.packed.packed_matrix import MatrixInfo, pack_float


def layer_decoder(decoder: Decoder, number: int) -> Decoder:
    """Describes a model that has only this layer, as layer 0."""
    return replace(
        decoder,
        vocab_size=1,
        kinds=(decoder.layer(number),),
        layers=(0,),
        final_norm=False,
        embedding_scale=1.0,
        embedding_norm=False,
        embedding_size=0,
        learned_positions=False,
        tied_head=True,
        head_bias=False,
        logit_scale=1.0,
        logit_softcap=0.0,
        predictor=None,
    )


@dataclass(frozen=True, slots=True)
class LayerFile:
    """The bytes of the packed file, as the engine reads them (`_native.ModelFiles`)."""

    parts: tuple[U8, ...]
    begins: NDArray[np.int64]
    """Offset of each part, and the total size: [parts + 1]."""

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        matrices: Mapping[str, tuple[MatrixInfo, U8]],
        vectors: Mapping[str, F32],
    ) -> Self:
        """decoder: from `layer_decoder`. matrices: packed; vectors: norms and biases; by their names in layer 0."""
        row = MatrixInfo("fp32", 1, decoder.hidden_size, 0, None)
        packed = {EMBEDDING: (row, pack_float(np.zeros((1, decoder.hidden_size), np.float32), "fp32")), **matrices}
        plan = PackedPlan(
            decoder=decoder,
            matrices={name: info for name, (info, _) in packed.items()},
            vectors={name: len(values) for name, values in vectors.items()},
            qtype="fp32",
            group_size=0,
            source="calibration",
        )
        parts = [np.frombuffer(plan.header(), np.uint8)]
        for name, size in plan.order():
            padding = np.zeros(size, np.uint8)
            values = packed[name][1] if name in packed else vectors.get(name, padding)
            parts.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        return cls(tuple(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64))

    def __str__(self) -> str:
        return "calibration layer"

    def size(self, name: str) -> int:
        """Size of a file in bytes."""
        if name != FILE_NAME:
            raise FileNotFoundError(name)
        return int(self.begins[-1])

    def read_into(self, name: str, begin: int, buffer: memoryview) -> None:
        """Fills `buffer` from byte `begin` on."""
        if name != FILE_NAME:
            raise FileNotFoundError(name)
        target = np.frombuffer(buffer, np.uint8)
        done = 0
        at = int(np.searchsorted(self.begins, begin, side="right")) - 1
        while done < len(target):
            offset = begin + done - int(self.begins[at])
            part = self.parts[at][offset : offset + len(target) - done]
            target[done : done + len(part)] = part
            done += len(part)
            at += 1
