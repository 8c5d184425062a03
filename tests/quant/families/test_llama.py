"""Llama, Mistral and the dense Qwens: what they describe, what they refuse, and transformers' tensors."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Attention, Mlp, decoder_from
from quant.families.names import engine_tensors
from quant.families.registry import describe, family_of, standard_config
from tests.quant.checkpoints import CONFIG


def of(changes: Mapping[str, Any]) -> Any:
    return describe({**CONFIG, **changes}, "x")


def test_defaults() -> None:
    raw = {key: value for key, value in CONFIG.items() if key not in ("num_key_value_heads", "rope_theta")}
    decoder = describe(raw, "x")
    assert (decoder.kv_heads, decoder.head_dim, len(decoder.layers)) == (4, 32, 2)
    assert decoder.layer(1).attention == Attention(1 / math.sqrt(32))
    assert decoder.layer(1).mlp == Mlp(192)
    assert decoder.ropes[0].frequencies[1] == pytest.approx(10000.0 ** (-2 / 32))


def test_biases_follow_the_class_and_not_only_the_option() -> None:
    llama = of({"attention_bias": True, "mlp_bias": True}).layer(0)
    assert (llama.attention.qkv_bias, llama.attention.output_bias, llama.mlp.bias) == (True, True, True)
    mistral = of({"model_type": "mistral", "attention_bias": True, "mlp_bias": True}).layer(0)
    assert (mistral.attention.qkv_bias, mistral.attention.output_bias, mistral.mlp.bias) == (False, False, False)
    qwen2 = of({"model_type": "qwen2", "attention_bias": False}).layer(0)
    assert (qwen2.attention.qkv_bias, qwen2.attention.output_bias) == (True, False)
    qwen3 = of({"model_type": "qwen3", "attention_bias": True, "mlp_bias": True}).layer(0)
    assert (qwen3.attention.qk_norm, qwen3.attention.output_bias, qwen3.mlp.bias) == ("head", True, False)


def windows(changes: Mapping[str, Any]) -> list[int]:
    decoder = of(changes)
    return [decoder.layer(number).attention.window for number in range(len(decoder.layers))]


def test_windows() -> None:
    assert windows({"model_type": "mistral", "sliding_window": 64}) == [64, 64]
    assert windows({"model_type": "mistral", "sliding_window": None}) == [0, 0]
    assert windows({"model_type": "mistral", "sliding_window": 512}) == [0, 0], "it holds the whole context"
    qwen = {"model_type": "qwen2", "sliding_window": 64, "num_hidden_layers": 3}
    assert windows({**qwen, "use_sliding_window": False, "max_window_layers": 1}) == [0, 0, 0]
    assert windows({**qwen, "use_sliding_window": True, "max_window_layers": 1}) == [0, 64, 64]
    assert windows({**qwen, "use_sliding_window": True}) == [0, 0, 0], "max_window_layers is 28 by default"
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows({**qwen, "use_sliding_window": True, "layer_types": types}) == [64, 0, 64]
    assert windows({"model_type": "llama", "sliding_window": 64}) == [0, 0], "its class does not read the key"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "perceiver"}, "model type 'perceiver' is not supported; supported: llama"),
        ({"model_type": None}, "model type None"),
        ({"model_type": ["llama"]}, "model type .'llama'. is not supported"),
        ({"auto_map": {"AutoModel": "x.py"}}, "its own Python code"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "already quantized .bitsandbytes."),
        ({"hidden_act": "tanh"}, "hidden_act is the activation 'tanh'"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 2}, "names 'chunked_attention'"),
    ],
)
def test_refused(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        of(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "128"}, "hidden_size is '128'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_attention_heads": 3}, "3 heads do not divide"),
        ({"num_key_value_heads": 3}, "do not fit together"),
        ({"head_dim": 33}, "do not fit together"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"rms_norm_eps": 1.0}, "rms_norm_eps is 1.0, not less than 1"),
        ({"intermediate_size": 1.5}, "intermediate_size is 1.5"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ({"hidden_act": 3}, "hidden_act is 3, not a string"),
        ({"model_type": "mistral", "sliding_window": -4}, "sliding_window is -4"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "not a list of 2"),
    ],
)
def test_wrong(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        of(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "qwen3", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"model_type": "mistral", "sliding_window": 64, "tie_word_embeddings": True},
    ],
)
def test_a_description_comes_back_from_json(changes: Mapping[str, Any]) -> None:
    decoder = of(changes)
    assert decoder_from(json.loads(json.dumps(decoder.to_dict()))) == decoder


def test_the_authors_keys_stay_and_the_usual_ones_are_added() -> None:
    raw = {**CONFIG, "rope_parameters": {"rope_theta": 5e5}, "author": "somebody", "auto_map": {"AutoModel": "x.py"}}
    del raw["num_key_value_heads"]
    plain = {key: value for key, value in raw.items() if key != "auto_map"}
    config = standard_config(raw, describe(plain, "x"), family_of(plain, "x"))
    assert plain.items() <= config.items()
    assert (config["num_key_value_heads"], config["head_dim"]) == (4, 32)
    assert "auto_map" not in config, "nothing here is ever executed"


@pytest.mark.parity
@pytest.mark.parametrize(("family", "bias"), [("Llama", True), ("Mistral", False), ("Qwen2", False), ("Qwen3", True)])
def test_the_tensors_expected_are_those_that_transformers_makes(family: str, bias: bool) -> None:
    import torch
    import transformers

    sizes = {key: value for key, value in CONFIG.items() if isinstance(value, int) and not key.endswith("_id")}
    hf_config = getattr(transformers, f"{family}Config")(**sizes, attention_bias=bias, mlp_bias=bias)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(hf_config)
    decoder = describe(json.loads(hf_config.to_json_string(use_diff=False)), "x")
    theirs = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in engine_tensors(decoder).items()} == theirs
