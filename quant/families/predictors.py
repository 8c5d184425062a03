"""The layer of multi-token prediction of a checkpoint: whether it is there, and which stored rows it is made of.

Knows no family: a family says what its checkpoints call the layer (`family.StoredPredictor`). The layer is of the same
kind as the model's last layer with attention, and its tensors are spelled as that layer's.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quant.families.description import Decoder, Predictor
from quant.families.family import Config, Family, Piece, StoredPredictor, Tensor
from quant.families.names import PREDICTOR, predictor_tensors

_LAYER = "model.layers.0."
_STORED_LAYER = "layers.0."


def with_predictor(
    family: Family, config: Config, decoder: Decoder, stored: Collection[str]
) -> tuple[Decoder, Mapping[str, Tensor]]:
    """The description with the checkpoint's predictor, and the predictor's tensors.

    stored: names of the checkpoint's tensors. Without a predictor that is whole, or one that the engine does not run,
    the decoder as it is and no tensors.
    """
    names, predicting = family.predictor, predicting_decoder(family, decoder)
    if names is None or predicting.predictor is None or _text(config).get("mtp_use_dedicated_embeddings"):
        return decoder, {}
    one = replace(decoder, kinds=(decoder.kinds[predicting.predictor.kind],), layers=(0,))
    number = len(decoder.layers)
    for spelling in (family.tensors, *family.alternatives):
        tensors = _own(names, number, decoder.hidden_size)
        for name, tensor in spelling(config, one).items():
            if name.startswith(_LAYER):
                pieces = tuple(_of_layer(piece, names.layer.format(number)) for piece in tensor.pieces)
                tensors[f"{PREDICTOR}.{name.removeprefix(_LAYER)}"] = replace(tensor, pieces=pieces)
        if all(piece.name in stored for tensor in tensors.values() for piece in tensor.pieces):
            return predicting, {name: tensors[name] for name in predictor_tensors(predicting)}
    return decoder, {}


def predicting_decoder(family: Family, decoder: Decoder) -> Decoder:
    """The description with the family's predictor; unchanged where there is none that the engine runs."""
    kind = next((number for number in reversed(decoder.layers) if _attends_to_all(decoder, number)), None)
    if family.predictor is None or kind is None or decoder.encoder is not None:
        return decoder
    return replace(decoder, predictor=Predictor(kind))


def _attends_to_all(decoder: Decoder, number: int) -> bool:
    attention = decoder.kinds[number].attention
    return attention is not None and not attention.window and attention.keys_of is None and not attention.slopes


def _text(config: Config) -> Mapping[str, Any]:
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def _own(names: StoredPredictor, number: int, hidden: int) -> dict[str, Tensor]:
    cols = np.roll(np.arange(2 * hidden), hidden) if names.hidden_first else None
    tensors = {
        f"{PREDICTOR}.input_proj.weight": Tensor(
            "linear", (hidden, 2 * hidden), (Piece(names.projection.format(number), cols=cols),)
        )
    }
    norms = {"embedding_norm": names.embedding_norm, "hidden_norm": names.hidden_norm, "output_norm": names.output_norm}
    for ours, theirs in norms.items():
        piece = Piece(theirs.format(number), offset=names.norm_offset)
        tensors[f"{PREDICTOR}.{ours}.weight"] = Tensor("vector", (hidden,), (piece,))
    return tensors


def _of_layer(piece: Piece, prefix: str) -> Piece:
    return replace(piece, name=prefix + piece.name.partition(_STORED_LAYER)[2])
