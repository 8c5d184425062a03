"""Quantizes a model's layers in order, each with the inputs that it has in the quantized model.

Two streams of activations run through the layers: `exact` is the unquantized model's, `seen` that of the layers
quantized so far. A matrix' moments are those of its `seen` inputs. A layer has four stages (query/key/value, output,
gate/up, down), each of matrices that share an input. In memory are the streams and one stage's matrices and moments,
never a whole model. Does not know how codes are chosen (`quant.methods`) or where tensors come from.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quant.calibration.block import (
    BlockShape,
    Weights,
    attend,
    attention_input,
    block,
    block_shape,
    gated,
    linear,
    mlp_input,
)
from quant.codes.matrix import F32

_CHUNK_VALUES: Final = 1 << 22
_PRODUCT_ROWS: Final = 1024
KEPT_VALUES: Final = 1 << 27
"""Up to so many inputs of the down projection are kept (512 MiB of fp32 for each stream); more are computed twice."""

ReadTensor = Callable[[str], F32]
"""A tensor's name -> its unquantized values."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Matrices of one layer that share their input: their full names, and the statistics of that input.

    Over all tokens, with s the input in the quantized model and x that in the unquantized one: moments is the mean of
    s s^T, and missing, for each matrix W, the mean of (W (x - s) + r) s^T. r is the difference from the quantized
    model's residual stream to the unquantized one's where W's output is added to the stream, else 0.
    """

    names: tuple[str, ...]
    weights: Mapping[str, F32]
    moments: F32
    missing: Mapping[str, F32]


QuantizeStage = Callable[[Stage], Mapping[str, F32]]
"""Quantizes the matrices of a stage, saves them, and returns their dequantized fp32 values by name."""


@dataclass(slots=True)
class Streams:
    """Activations between layers, fp32 [windows, tokens, hidden] each."""

    exact: F32
    seen: F32


@dataclass(slots=True)
class _Layer:
    """The weights of one layer that are in memory, under short names: unquantized (`exact`) and quantized (`seen`)."""

    prefix: str
    widest: int
    exact: dict[str, F32] = field(default_factory=dict)
    seen: dict[str, F32] = field(default_factory=dict)


_ATTENTION: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUTPUT: Final = ("self_attn.o_proj",)
_GATES: Final = ("mlp.gate_proj", "mlp.up_proj")
_DOWN: Final = ("mlp.down_proj",)


def run_layer(
    number: int,
    config: Mapping[str, Any],
    vectors: Mapping[str, F32],
    read: ReadTensor,
    reread: ReadTensor,
    quantize: QuantizeStage,
    streams: Streams,
) -> None:
    """Quantizes layer `number` and runs both streams through it, in place.

    vectors: the layer's norms and biases, by full name. reread: the dequantized values of a matrix that `quantize` has
    saved.
    """
    shape = block_shape(config, streams.exact.shape[1])
    prefix = f"model.layers.{number}."
    short = {name.removeprefix(prefix): values for name, values in vectors.items() if name.startswith(prefix)}
    layer = _Layer(prefix, int(config["intermediate_size"]), dict(short), dict(short))

    _stage(layer, _ATTENTION, read, quantize, _pairs(layer, streams, lambda x, w: attention_input(x, w, shape)))
    contexts = _mapped(layer, streams, lambda x, w: attend(attention_input(x, w, shape), w, shape))
    _drop(layer, _ATTENTION)
    _stage(layer, _OUTPUT, read, quantize, _pairs(layer, contexts, lambda x, w: x), streams)
    _add(layer, streams, contexts, lambda x, w: linear(x, w, "self_attn.o_proj"))
    del contexts
    _drop(layer, _OUTPUT)

    _stage(layer, _GATES, read, quantize, _pairs(layer, streams, lambda x, w: mlp_input(x, w, shape)))

    def inner(x: F32, weights: Weights) -> F32:
        return gated(mlp_input(x, weights, shape), weights)

    if streams.exact[..., 0].size * int(config["intermediate_size"]) <= KEPT_VALUES:
        inners = _mapped(layer, streams, inner)
        _stage(layer, _DOWN, read, quantize, _pairs(layer, inners, lambda x, w: x), streams)
        _add(layer, streams, inners, lambda x, w: linear(x, w, "mlp.down_proj"))
    else:  # computed twice and never kept; the gates are dropped while the down projection is quantized

        def pairs() -> Iterator[tuple[F32, F32]]:
            yield from _pairs(layer, streams, inner)
            _drop(layer, _GATES)

        _stage(layer, _DOWN, read, quantize, pairs(), streams)
        for name in (f"{gate}.weight" for gate in _GATES):
            layer.exact[name], layer.seen[name] = read(prefix + name), reread(prefix + name)
        _add(layer, streams, streams, lambda x, w: linear(inner(x, w), w, "mlp.down_proj"))


MATRICES: Final = tuple(f"{name}.weight" for name in (*_ATTENTION, *_OUTPUT, *_GATES, *_DOWN))
"""A layer's matrices under its own short names."""

QuantizeLayer = Callable[[str, Weights, Streams, BlockShape], Mapping[str, F32]]
"""(prefix of full names, unquantized weights, streams, shape) -> the dequantized values of MATRICES.

The streams hold the unquantized layer's outputs (`exact`) and the quantized layer's inputs (`seen`)."""


def run_whole_layer(
    number: int,
    config: Mapping[str, Any],
    vectors: Mapping[str, F32],
    read: ReadTensor,
    quantize: QuantizeLayer,
    streams: Streams,
) -> None:
    """As run_layer, for methods that choose all codes of a layer together; all its matrices are in memory."""
    shape = block_shape(config, streams.exact.shape[1])
    prefix = f"model.layers.{number}."
    weights = {name.removeprefix(prefix): values for name, values in vectors.items() if name.startswith(prefix)}
    weights |= {name: read(prefix + name) for name in MATRICES}
    layer = _Layer(prefix, int(config["intermediate_size"]), weights, weights)
    for part in _chunks(layer, streams.exact):
        streams.exact[part] = block(streams.exact[part], weights, shape)
    layer.seen = {**weights, **quantize(prefix, weights, streams, shape)}
    for part in _chunks(layer, streams.seen):
        streams.seen[part] = block(streams.seen[part], layer.seen, shape)


def embedded(ids: NDArray[np.int32], rows: Callable[[NDArray[np.intp]], F32]) -> F32:
    """Embedding rows [windows, tokens, hidden] of ids [windows, tokens]; `rows` reads rows in ascending order."""
    numbers, places = np.unique(ids, return_inverse=True)
    return rows(numbers.astype(np.intp))[places.reshape(ids.shape)]


def _stage(
    layer: _Layer,
    names: tuple[str, ...],
    read: ReadTensor,
    quantize: QuantizeStage,
    inputs: Iterator[tuple[F32, F32]],
    residual: Streams | None = None,
) -> None:
    full = {name: f"{layer.prefix}{name}.weight" for name in names}
    moments, drift, residual_missing = _moments(inputs, residual)
    weights = {name: read(name) for name in full.values()}
    missing = {name: values @ drift for name, values in weights.items()}
    del drift
    if residual_missing is not None:
        for values in missing.values():
            values += residual_missing
    quantized = quantize(Stage(tuple(full.values()), weights, moments, missing))
    for name, tensor in full.items():
        layer.exact[f"{name}.weight"] = weights[tensor]
        layer.seen[f"{name}.weight"] = quantized[tensor]


def _moments(inputs: Iterator[tuple[F32, F32]], residual: Streams | None) -> tuple[F32, F32, F32 | None]:
    """The means over tokens of s s^T, of (x - s) s^T, and of r s^T where there is a residual stream (see Stage)."""
    moments = drift = missing = np.zeros((0, 0), np.float32)
    windows = tokens = 0
    for exact, seen in inputs:
        flat, original = (x.reshape(-1, x.shape[-1]) for x in (seen, exact))
        width = flat.shape[1]
        if not windows:
            moments, drift = (np.zeros((width, width), np.float32) for _ in range(2))
            missing = np.zeros((0 if residual is None else residual.seen.shape[-1], width), np.float32)
        _add_product(moments, flat, flat)
        _add_product(drift, original - flat, flat)
        if residual is not None:
            part = slice(windows, windows + len(seen))
            difference = residual.exact[part] - residual.seen[part]
            _add_product(missing, difference.reshape(len(flat), -1), flat)
        windows += len(seen)
        tokens += len(flat)
    for total in (moments, drift, missing):
        total /= np.float32(tokens)
    return moments, drift, missing if residual is not None else None


def _add_product(total: F32, left: F32, right: F32) -> None:
    """total += left^T right, some rows at a time, because the product of wide inputs takes too much memory."""
    for begin in range(0, len(total), _PRODUCT_ROWS):
        part = slice(begin, begin + _PRODUCT_ROWS)
        total[part] += left[:, part].T @ right


def _mapped(layer: _Layer, streams: Streams, function: Callable[[F32, Weights], F32]) -> Streams:
    mapped: list[F32] = []
    done = 0
    for pair in _pairs(layer, streams, function):
        if not mapped:
            mapped = [np.empty((len(streams.exact), *values.shape[1:]), np.float32) for values in pair]
        for whole, values in zip(mapped, pair, strict=True):
            whole[done : done + len(values)] = values
        done += len(pair[0])
    return Streams(*mapped)


def _pairs(layer: _Layer, streams: Streams, function: Callable[[F32, Weights], F32]) -> Iterator[tuple[F32, F32]]:
    for part in _chunks(layer, streams.exact):
        yield function(streams.exact[part], layer.exact), function(streams.seen[part], layer.seen)


def _add(layer: _Layer, streams: Streams, inputs: Streams, function: Callable[[F32, Weights], F32]) -> None:
    for part in _chunks(layer, streams.exact):
        streams.exact[part] += function(inputs.exact[part], layer.exact)
        streams.seen[part] += function(inputs.seen[part], layer.seen)


def _drop(layer: _Layer, names: tuple[str, ...]) -> None:
    for name in names:
        del layer.exact[f"{name}.weight"], layer.seen[f"{name}.weight"]


def _chunks(layer: _Layer, windows: F32) -> Iterator[slice]:
    """Runs of windows whose widest activations are at most about _CHUNK_VALUES."""
    step = max(1, _CHUNK_VALUES // (windows.shape[1] * layer.widest))
    for begin in range(0, len(windows), step):
        yield slice(begin, min(begin + step, len(windows)))
