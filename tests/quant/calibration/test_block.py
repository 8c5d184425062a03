"""The layer in NumPy against the native engine, for every family, and its gradients against differences."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.calibration.block import BlockShape, block, block_gradients, block_shape
from quant.families.registry import describe
from tests.kernels.tiny_model import LLAMA, random_tensors, write_model

TOKENS = 72
TRAINED = 32


def scaled(rope_type: str, **options: Any) -> dict[str, Any]:
    parameters = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0, **options}
    return {**LLAMA, "rope_parameters": parameters, "max_position_embeddings": TRAINED}


FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": LLAMA,
    "no grouping": {**LLAMA, "num_key_value_heads": 4},
    "biases": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "own head_dim": {**LLAMA, "head_dim": 32},
    "mistral": {**LLAMA, "model_type": "mistral"},
    "qwen2": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 32},
    "linear": scaled("linear"),
    "dynamic": scaled("dynamic"),
    "llama3": scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=TRAINED),
    "yarn": scaled("yarn", original_max_position_embeddings=TRAINED),
    "yarn, options": scaled(
        "yarn", original_max_position_embeddings=TRAINED, beta_fast=8.0, beta_slow=2.0, truncate=False, mscale=0.7,
        mscale_all_dim=1.3,
    ),
    "yarn, factor": scaled("yarn", original_max_position_embeddings=TRAINED, attention_factor=1.2),
}  # fmt: skip


def layer(tensors: Mapping[str, NDArray[Any]], number: int) -> dict[str, NDArray[Any]]:
    prefix = f"model.layers.{number}."
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_engine(family: str, tmp_path: Path) -> None:
    from kernels import _native

    raw = FAMILIES[family]
    decoder = describe(raw, "test")
    tensors = random_tensors(raw)
    model = _native.Model(
        str(write_model(tmp_path / "model", raw, tensors)),
        threads=1, compute_type="fp32", kv_type="fp32", kv_pages=8, max_sequences=1, max_step_tokens=TOKENS,
        max_context_tokens=128,
    )  # fmt: skip
    model.page_table[0] = np.arange(model.page_table.shape[1])
    ids = np.random.default_rng(0).integers(0, decoder.vocab_size, TOKENS).astype(np.int32)
    zero, count = np.zeros(1, np.int32), np.array([TOKENS], np.int32)
    theirs = model.hidden_states(ids, np.arange(TOKENS, dtype=np.int32), zero, count, zero)
    shape = block_shape(decoder, TOKENS)
    x = theirs[0][None]
    for number in range(len(decoder.layers)):
        x = block(x, layer(tensors, number), shape)
        error = np.linalg.norm(x[0] - theirs[number + 1])
        assert error < 500 * np.finfo(np.float32).eps * np.linalg.norm(theirs[number + 1])


@pytest.mark.parametrize("family", ["llama", "biases", "qwen3"])
def test_gradients_are_the_differences(family: str) -> None:
    raw = FAMILIES[family]
    decoder = describe(raw, "test")
    generator = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {
        name: values.astype(np.float64) for name, values in layer(random_tensors(raw), 0).items()
    }
    single = block_shape(decoder, 7)
    doubled: NDArray[Any] = np.array([single.cosines, single.sines], np.float64)
    shape = BlockShape(
        single.heads, single.kv_heads, single.head_dim, single.epsilon,
        doubled[0], doubled[1],
    )  # fmt: skip
    x: NDArray[Any] = generator.standard_normal((2, 7, decoder.hidden_size))
    direction: NDArray[Any] = generator.standard_normal(x.shape)
    x_gradient, gradients = block_gradients(x, weights, shape, direction)
    assert set(gradients) == set(weights)

    def check(values: NDArray[Any], gradient: NDArray[Any]) -> None:
        assert gradient.shape == values.shape
        for _ in range(5):
            place = tuple(generator.integers(0, size) for size in values.shape)
            kept, outputs = values[place], []
            for step in (1e-5, -1e-5):
                values[place] = kept + step
                outputs.append(float((block(x, weights, shape) * direction).sum()))
            values[place] = kept
            assert abs((outputs[0] - outputs[1]) / 2e-5 - gradient[place]) < 1e-4 * max(1.0, abs(gradient[place]))

    check(x, x_gradient)
    for name, values in weights.items():
        check(values, gradients[name])
