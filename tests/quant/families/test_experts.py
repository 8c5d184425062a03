"""Mixtures of experts: what their configurations describe, and what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Experts, Mlp
from quant.families.names import EngineTensor, engine_tensors
from quant.families.registry import describe
from tests.quant.checkpoints import CONFIG

QWEN3: Mapping[str, Any] = {
    **CONFIG, "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
}  # fmt: skip
QWEN2 = {**QWEN3, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 160}
OLMOE = {**CONFIG, "model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 6}
MIXTRAL = {**CONFIG, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def test_the_mixtures() -> None:
    assert describe(QWEN3, "x").layer(0).experts == Experts(6, 2, 96)
    assert describe({**QWEN3, "norm_topk_prob": True}, "x").layer(0).experts == Experts(6, 2, 96, renormalize=True)
    qwen2 = describe(QWEN2, "x")
    assert qwen2.layer(0).experts == Experts(6, 2, 96, shared_inner=160, shared_gate=True)
    assert (qwen2.attention(0).qkv_bias, qwen2.attention(0).output_bias) == (True, False)
    olmoe = describe(OLMOE, "x")
    assert (olmoe.layer(0).experts, olmoe.attention(0).qk_norm) == (Experts(6, 6, 192), "row")
    mixtral = describe({**MIXTRAL, "sliding_window": 64}, "x")
    assert (mixtral.layer(0).experts, mixtral.attention(0).window) == (Experts(8, 2, 192, renormalize=True), 64)


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({}, [True] * 5),
        ({"decoder_sparse_step": 2}, [False, True, False, True, False]),
        ({"mlp_only_layers": [0, 4]}, [False, True, True, True, False]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [False, True, False, False, False]),
        ({"decoder_sparse_step": 7}, [False] * 5),
    ],
)
def test_which_layers_have_experts(changes: Mapping[str, Any], sparse: list[bool]) -> None:
    decoder = describe({**QWEN3, "num_hidden_layers": 5, **changes}, "x")
    assert [decoder.layer(number).experts is not None for number in range(5)] == sparse
    assert [decoder.layer(number).mlp for number in range(5)] == [None if each else Mlp(192) for each in sparse]


def test_windows_of_qwen2_moe_alternate_below_max_window_layers() -> None:
    config = {**QWEN2, "num_hidden_layers": 5, "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}
    decoder = describe(config, "x")
    assert [decoder.attention(number).window for number in range(5)] == [64, 0, 64, 0, 0]


def test_stacks() -> None:
    tensors = engine_tensors(describe(QWEN2, "x"))
    prefix = "model.layers.1.mlp"
    assert tensors[f"{prefix}.router.weight"] == EngineTensor("router", (6, 128))
    assert tensors[f"{prefix}.experts.gate_proj.weight"] == EngineTensor("linear", (6 * 96, 128), 6)
    assert tensors[f"{prefix}.experts.down_proj.weight"] == EngineTensor("linear", (6 * 128, 96), 6)
    assert tensors[f"{prefix}.shared.up_proj.weight"] == EngineTensor("linear", (160, 128))
    assert tensors[f"{prefix}.shared_gate.weight"] == EngineTensor("vector", (128,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**QWEN3, "num_experts": None}, "num_experts is missing"),
        ({**QWEN3, "num_experts_per_tok": 7}, "num_experts_per_tok is 7, more than the 6 experts"),
        ({**QWEN3, "num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
        ({**QWEN3, "decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({**QWEN3, "mlp_only_layers": 3}, "mlp_only_layers is 3, not a list"),
        ({**QWEN2, "shared_expert_intermediate_size": None}, "shared_expert_intermediate_size is missing"),
        ({**MIXTRAL, "num_local_experts": 2.0}, "num_experts is 2.0"),
    ],
)
def test_wrong(config: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        describe(config, "x")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**OLMOE, "clip_qkv": 8.0}, "clip_qkv is 8.0; clipping is not supported"),
        ({**QWEN3, "moe_intermediate_size": 100}, "moe_intermediate_size is 100; of models with experts only"),
        ({**MIXTRAL, "hidden_size": 144, "head_dim": 32}, "hidden_size is 144; of models with experts only"),
        ({**MIXTRAL, "hidden_act": "tanh"}, "hidden_act is the activation 'tanh'"),
    ],
)
def test_refused(config: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        describe(config, "x")
