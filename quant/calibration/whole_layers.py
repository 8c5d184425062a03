"""Runs layers of the Llama family for methods that choose all codes of a layer together, in NumPy (`block`).

Both streams (see `layers`) run through whole layers, whose matrices are all in memory. Does not know how codes are
chosen, nor files.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from quant.calibration.block import BlockShape, Weights, block, block_shape
from quant.calibration.layers import Streams
from quant.codes.matrix import F32
from quant.families.description import Decoder

_CHUNK_VALUES: Final = 1 << 22

MATRICES: Final = tuple(
    f"{name}.weight"
    for name in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )
)  # fmt: skip
"""A layer's matrices under its own short names."""

ReadTensor = Callable[[str], F32]
"""A tensor's name -> its unquantized values."""
QuantizeLayer = Callable[[str, Weights, Streams, BlockShape], Mapping[str, F32]]
"""(prefix of full names, unquantized weights, streams, shape) -> the dequantized values of MATRICES.

The streams hold the unquantized layer's outputs (`exact`) and the quantized layer's inputs (`seen`)."""


def run_whole_layer(
    number: int,
    decoder: Decoder,
    vectors: Mapping[str, F32],
    read: ReadTensor,
    quantize: QuantizeLayer,
    streams: Streams,
) -> None:
    """Quantizes layer `number` and runs both streams through it, in place. The decoder must be `block.is_computed`."""
    shape = block_shape(decoder, streams.exact.shape[1])
    prefix = f"model.layers.{number}."
    weights = {name.removeprefix(prefix): values for name, values in vectors.items() if name.startswith(prefix)}
    weights |= {name: read(prefix + name) for name in MATRICES}
    for part in _chunks(decoder, streams.exact):
        streams.exact[part] = block(streams.exact[part], weights, shape)
    seen = {**weights, **quantize(prefix, weights, streams, shape)}
    for part in _chunks(decoder, streams.seen):
        streams.seen[part] = block(streams.seen[part], seen, shape)


def _chunks(decoder: Decoder, windows: F32) -> Iterator[slice]:
    """Runs of windows whose widest activations are at most about _CHUNK_VALUES."""
    step = max(1, _CHUNK_VALUES // (windows.shape[1] * decoder.widest_inner))
    for begin in range(0, len(windows), step):
        yield slice(begin, min(begin + step, len(windows)))
