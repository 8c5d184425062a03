"""Quantizes a model's layers by the inputs that they have in the unquantized model, which runs once.

The quick way beside `layers`: one stream of activations, once through every layer, with int8 weights and activations,
and moments of blocks of inputs. No layer makes up for the errors of those before it. In memory are the stream and one
layer. Does not know how codes are chosen (`quant.methods`).
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quant.calibration.layers import ATTENTION, EXPERT_GATES, GATES, OUTPUT, SHARED_GATES, LayerInWork, LayerWork
from quant.calibration.sums import block_sums, expert_moments
from quant.codes.matrix import F32
from quant.families.description import Decoder

_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention_input": ATTENTION,
    "query_input": ("self_attn.q_b_proj",),
    "output_input": OUTPUT,
    "mlp_input": (*GATES, *SHARED_GATES),
    "shared_down_input": ("mlp.shared.down_proj",),
}
"""Activations, and the matrices that take them."""
_HEADS: Final[Mapping[str, tuple[str, ...]]] = {
    "key_up_input": ("self_attn.key_up_proj",),
    "value_up_input": ("self_attn.value_up_proj",),
}
"""The same for stacks with a matrix for each head; the activations have all heads' inputs side by side."""
_DOWN: Final = ("mlp.down_proj",)
_EXPERT_DOWN: Final = ("mlp.experts.down_proj",)


def run_layer_once(number: int, decoder: Decoder, work: LayerWork, hidden: F32) -> None:
    """Quantizes layer `number` and runs the unquantized model's stream through it, in place.

    hidden: [windows, tokens, hidden].
    """
    layer, tokens = LayerInWork(number, decoder, work, hidden.shape[1]), hidden.shape[1]
    experts = layer.kind.experts is not None
    stages = {**_STAGES, ("dense_down_input" if experts else "down_input"): _DOWN}
    plain = {name: layer.names(*names) for name, names in stages.items() if layer.names(*names)}
    heads = {name: layer.names(*names) for name, names in _HEADS.items() if layer.names(*names)}
    rows_in = "mlp_input" if layer.kind.mlp is None else "experts_input"
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in (rows_in, "down_input", "pairs") if experts}
    sums: dict[str, F32] = {}
    with layer.near() as engine:
        for part, arrays in engine.activations(hidden, sorted({"hidden", *plain, *heads, *rows})):
            for name in (*plain, *heads):
                count = layer.tensor(heads[name][0]).count if name in heads else 1
                by_head = arrays[name].reshape(len(arrays[name]), count, -1)
                found = np.stack([block_sums(by_head[:, head]) for head in range(count)])
                sums[name] = sums[name] + found if name in sums else found
            for name, parts in rows.items():
                parts.append(arrays[name])
            if experts:
                rows["pairs"][-1][:, 0] += part.start * tokens
            hidden[part] = arrays["hidden"].reshape(hidden[part].shape)
    for total in sums.values():
        total /= np.float32(len(hidden) * tokens)
    for name, names in plain.items():
        layer.quantize(names, sums.pop(name)[0])
    for name, names in heads.items():
        layer.quantize_stacks(names, sums.pop(name))
    if experts:
        _experts(layer, *(np.concatenate(rows.pop(name)) for name in (rows_in, "down_input", "pairs")))


def _experts(layer: LayerInWork, inputs: F32, inners: F32, pairs: NDArray[np.int32]) -> None:
    """inputs: of tokens. inners: what experts' last matrices take, of each pair of a token and an expert."""
    count = layer.tensor(_EXPERT_DOWN[0]).count

    def quantize(names: tuple[str, ...], found: F32, places: NDArray[np.intp]) -> None:
        mean = block_sums(found) / np.float32(len(found))
        moments = expert_moments(lambda mine: found[places[mine]], pairs[:, 1], count, mean, block_sums)
        layer.quantize_stacks(names, moments)

    quantize(layer.names(*EXPERT_GATES), inputs, pairs[:, 0].astype(np.intp))
    quantize(_EXPERT_DOWN, inners, np.arange(len(inners)))
