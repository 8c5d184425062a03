"""What each matrix is quantized by, against its definition in float64: in memory or recomputed, however it is cut."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.calibration import layers
from quant.calibration.block import attend, attention_input, block, block_shape, gated, linear, mlp_input
from quant.calibration.layers import MATRICES, Stage, Streams, run_layer
from quant.codes.matrix import F32
from quant.sources.model_config import complete_config
from tests.kernels.tiny_model import LLAMA, random_tensors

F64 = NDArray[np.float64]
PREFIX = "model.layers.0."
WINDOWS, TOKENS = 7, 12
RAW = {**LLAMA, "attention_bias": True, "mlp_bias": True}


def start(tensors: Mapping[str, F32]) -> Streams:
    """The first token far longer than the rest, as models have it; what is seen a little off, there most of all."""
    generator = np.random.default_rng(4)
    exact = generator.standard_normal((WINDOWS, TOKENS, 64)).astype(np.float32)
    exact[:, 0] += 300 * tensors["model.embed_tokens.weight"][7]
    seen = exact * generator.uniform(0.95, 1.05, exact.shape).astype(np.float32)
    return Streams(exact, seen)


def rounded(values: F32) -> F32:
    return np.round(values * 4) / np.float32(4)


def run(tensors: Mapping[str, F32]) -> tuple[dict[str, tuple[F32, F32]], Streams]:
    """moments and missing by matrix, and the streams after the layer."""
    config, _ = complete_config(RAW, "test")
    streams, found_of = start(tensors), dict[str, tuple[F32, F32]]()
    vectors = {name: values for name, values in tensors.items() if values.ndim == 1}

    def quantize(stage: Stage) -> dict[str, F32]:
        found_of.update({name: (stage.moments, stage.missing[name]) for name in stage.names})
        return {name: rounded(stage.weights[name]) for name in stage.names}

    run_layer(0, config, vectors, lambda name: tensors[name], lambda name: rounded(tensors[name]), quantize, streams)
    return found_of, streams


def definition(tensors: Mapping[str, F32]) -> tuple[dict[str, tuple[F64, F64]], F64, F64]:
    config, _ = complete_config(RAW, "test")
    shape = block_shape(config, TOKENS)
    exact = {name.removeprefix(PREFIX): values for name, values in tensors.items() if name.startswith(PREFIX)}
    seen = {**exact, **{name: rounded(exact[name]) for name in MATRICES}}
    streams = start(tensors)
    sides = ((streams.exact, exact), (streams.seen, seen))
    inputs: list[dict[str, Any]] = []
    for x, weights in sides:
        normed = attention_input(x, weights, shape)
        context = attend(normed, weights, shape)
        middle = x + linear(context, weights, "self_attn.o_proj")
        normed_mlp = mlp_input(middle, weights, shape)
        inner = gated(normed_mlp, weights)
        each: dict[str, Any] = dict.fromkeys(("q_proj", "k_proj", "v_proj"), (normed, None))
        each |= {"o_proj": (context, x), "gate_proj": (normed_mlp, None), "up_proj": (normed_mlp, None)}
        inputs.append(each | {"down_proj": (inner, middle)})
    found_of = {}
    for name in MATRICES:
        short = name.removesuffix(".weight")
        (x, residual), (s, residual_seen) = (each[short.split(".")[1]] for each in inputs)
        flat = s.astype(np.float64).reshape(WINDOWS * TOKENS, -1)
        d = (x - s).astype(np.float64).reshape(flat.shape) @ exact[name].T.astype(np.float64)
        if residual is not None:
            d += (residual - residual_seen).astype(np.float64).reshape(d.shape)
        found_of[PREFIX + name] = (flat.T @ flat / len(flat), d.T @ flat / len(flat))
    outputs = [block(x, weights, shape).astype(np.float64) for x, weights in sides]
    return found_of, outputs[0], outputs[1]


def near(found: F32, wanted: F64) -> bool:
    return bool(np.linalg.norm(found - wanted) < 2e-5 * np.linalg.norm(wanted))


@pytest.mark.parametrize("kept", [0, 1 << 27])
@pytest.mark.parametrize("chunk", [1, 1 << 12, 1 << 22])
def test_moments_and_what_is_missing_are_the_definitions(
    kept: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "KEPT_VALUES", kept)
    monkeypatch.setattr(layers, "_CHUNK_VALUES", chunk)
    monkeypatch.setattr(layers, "_PRODUCT_ROWS", 48)
    tensors = random_tensors(RAW)
    found, streams = run(tensors)
    wanted, exact, seen = definition(tensors)
    assert list(found) == [PREFIX + name for name in MATRICES]
    for name, (moments, missing) in wanted.items():
        assert near(found[name][0], moments), name
        assert near(found[name][1], missing), name
    assert near(streams.exact, exact)
    assert near(streams.seen, seen)
