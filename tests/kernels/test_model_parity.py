"""Every family's shape and every rotary scaling against transformers, on random weights.

The truth is transformers in float64, its own formulas for the rotary frequencies evaluated in float64 too. The
engine (fp32 weights, activations and pages) may be off by a small multiple of what float32 costs transformers.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.families.registry import describe
from tests.kernels.tiny_model import LLAMA, Sequences, random_tensors, write_model

pytestmark = pytest.mark.parity

ROUNDING_MULTIPLE = 8.0
"""The engine sums in strictly ascending order where a BLAS sums in blocks: its error grows faster with length."""
TOKENS = 72
TRAINED = 32
"""The trained length of the scaled models: half of the prompt lies past it."""


def shape(model_type: str, **options: Any) -> dict[str, Any]:
    return {**LLAMA, "model_type": model_type, **options}


def scaled(rope_type: str, **options: Any) -> dict[str, Any]:
    parameters = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0, **options}
    return shape("llama", rope_parameters=parameters, max_position_embeddings=TRAINED)


CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama": shape("llama"),
    "llama, tied": shape("llama", tie_word_embeddings=True),
    "llama, no grouping": shape("llama", num_key_value_heads=4),
    "llama, one kv head": shape("llama", num_key_value_heads=1, rms_norm_eps=1e-5),
    "llama, biases": shape("llama", attention_bias=True, mlp_bias=True),
    "llama, own head_dim": shape("llama", head_dim=32, num_attention_heads=8, num_key_value_heads=4),
    "llama, theta": shape("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "mistral": shape("mistral", sliding_window=None),
    "mistral, window": shape("mistral", sliding_window=128, head_dim=32),
    "qwen2": shape("qwen2", use_sliding_window=False),
    "qwen2, tied": shape("qwen2", tie_word_embeddings=True, num_key_value_heads=4),
    "qwen3": shape("qwen3", head_dim=32),
    "qwen3, biases": shape("qwen3", head_dim=16, attention_bias=True, tie_word_embeddings=True),
    "linear": scaled("linear"),
    "dynamic": scaled("dynamic"),
    "llama3": scaled(
        "llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=TRAINED
    ),
    "yarn": scaled("yarn", original_max_position_embeddings=TRAINED),
    "yarn, options": scaled(
        "yarn", original_max_position_embeddings=TRAINED, beta_fast=8.0, beta_slow=2.0, truncate=False,
        mscale=0.7, mscale_all_dim=1.3,
    ),
    "yarn, factor": scaled("yarn", original_max_position_embeddings=TRAINED, attention_factor=1.2),
}  # fmt: skip


def _older(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as transformers 4 wrote it."""
    older = {key: value for key, value in config.items() if key != "rope_parameters"}
    scaling = dict(config["rope_parameters"])
    older["rope_theta"] = scaling.pop("rope_theta")
    older["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    return older


class _DoubleTorch:
    """torch, but its single precision is double."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.float = self.float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def _exact_rotary(torch: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Angles in float64, each token's frequencies those of a sequence that ends with it, as when decoding."""
    import sys

    import transformers

    rope = transformers.modeling_rope_utils
    rotary = model.model.rotary_emb
    kind = rotary.rope_type
    function = rotary.compute_default_rope_parameters if kind == "default" else rope.ROPE_INIT_FUNCTIONS[kind]
    double = _DoubleTorch(torch)

    def frequencies(position: int) -> tuple[Any, float]:
        with monkeypatch.context() as patch:
            patch.setattr(rope, "torch", double)
            patch.setattr(sys.modules[type(rotary).__module__], "torch", double)
            values, scaling = function(model.config, device=torch.device("cpu"), seq_len=position + 1)
        assert values.dtype == torch.float64
        return values, scaling

    def forward(x: Any, position_ids: Any) -> Any:
        rows = []
        for position in position_ids[0].tolist():
            values, scaling = frequencies(position)
            rows.append((values * position, scaling))
        angles = torch.stack([row for row, _ in rows])[None]
        both = torch.cat((angles, angles), dim=-1)
        scaling = rows[0][1]
        return (both.cos() * scaling).to(x.dtype), (both.sin() * scaling).to(x.dtype)

    monkeypatch.setattr(rotary, "forward", forward)


def _reference(
    config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]], monkeypatch: pytest.MonkeyPatch
) -> Any:
    import torch
    import transformers

    options = {key: value for key, value in config.items() if key != "model_type"}
    hf_config = transformers.AutoConfig.for_model(config["model_type"], **options)
    model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        hf_config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(values) for name, values in tensors.items()}, strict=False
    )
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.get("tie_word_embeddings") else set())
    model.tie_weights()
    truth = copy.deepcopy(model).double()
    for each in (model, truth):
        _exact_rotary(torch, each, monkeypatch)
    return model, truth


def _logits(model: Any, ids: list[int]) -> NDArray[np.float64]:
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids])).logits[0].double().numpy())


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS[name]
    tensors = random_tensors(config)
    model, truth = _reference(config, tensors, monkeypatch)
    written = model.config.to_dict()
    assert "rope_parameters" in written
    assert describe(_older(written), "older") == describe(written, "transformers 5")
    context = written.get("sliding_window") or 256
    ours = Sequences(write_model(tmp_path / "model", written, tensors), context=context)

    ids = [int(token) for token in np.random.default_rng(3).integers(0, config["vocab_size"], TOKENS)]
    expected = _logits(truth, ids)
    allowed = ROUNDING_MULTIPLE * np.linalg.norm(_logits(model, ids) - expected)
    assert 0 < allowed < 1e-3 * np.linalg.norm(expected), "the reference itself is sound"
    error = np.linalg.norm(ours.logits({0: ids}) - expected)
    assert error <= allowed, f"{error / allowed:.3g} of what is allowed"


def test_dynamic_scaling_equals_transformers_token_by_token(tmp_path: Path) -> None:
    """transformers' own rotary code, not ours around its formula: decoding past the trained length."""
    import torch
    import transformers

    config = CONFIGS["dynamic"]
    tensors = random_tensors(config)
    options = {key: value for key, value in config.items() if key != "model_type"}
    model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        transformers.LlamaConfig(**options), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
    ids = [int(token) for token in np.random.default_rng(3).integers(0, config["vocab_size"], TOKENS)]
    cache, expected = None, []
    for token in ids:
        with torch.no_grad():
            output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        expected.append(output.logits[0, 0].numpy())
    ours = Sequences(write_model(tmp_path / "model", model.config.to_dict(), tensors)).logits({0: ids})
    # Its angles are rounded to float32, which leaves 2^-24 of a turn count of up to TOKENS.
    difference = np.linalg.norm(ours - np.stack(expected)) / np.linalg.norm(ours)
    assert difference < 4 * TOKENS * 2.0**-24
