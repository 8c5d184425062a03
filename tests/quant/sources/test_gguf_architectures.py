"""GGUF files of further architectures, as llama.cpp's converter writes them, give what the original folders do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from quant.codes.dequantize import dequantize
from quant.codes.matrix import QuantizedMatrix
from quant.errors import QuantError, SourceError, UnsupportedModelError
from quant.families.description import Decoder
from quant.families.registry import describe
from quant.sources.open_source import open_source
from tests.kernels.tiny_model import described_tensors
from tests.quant.checkpoints import SPECIAL_TOKENS, add_metadata, add_tokenizer, finish

F32 = NDArray[np.float32]
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 192, "max_position_embeddings": 512, "head_dim": 32,
}  # fmt: skip
ALL_HEADS = {**SIZES, "num_key_value_heads": 4}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "truncate": False}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i / 4 for i in range(8)]}
LONGROPE = {"rope_type": "longrope", "attention_factor": 1.125, **FACTORS}
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.125, "logits_scaling": 8.0,
}  # fmt: skip

# By architecture: the original's configuration, and the metadata that only this architecture has.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma": ({**SIZES, "model_type": "gemma"}, {"attention.layer_norm_rms_epsilon": 1e-6}),
    "gemma2": (
        {**SIZES, "model_type": "gemma2", "sliding_window": 32, "query_pre_attn_scalar": 32},
        {
            "attention.sliding_window": 32, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "gemma3": (
        {
            **SIZES, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 32,
            "query_pre_attn_scalar": 32, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "block_count": 7, "attention.sliding_window": 32, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0, "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "gemma4": (
        {
            **SIZES, "model_type": "gemma4_text", "hidden_size": 256, "sliding_window": 32, "num_hidden_layers": 4,
            "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "enable_moe_block": True,
            "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 96, "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        },
        {
            "embedding_length": 256, "attention.sliding_window": 32, "attention.head_count_kv": [2, 1, 2, 1],
            "attention.sliding_window_pattern": [True, False, True, False], "attention.key_length": 64,
            "attention.value_length": 64, "attention.key_length_swa": 32, "attention.value_length_swa": 32,
            "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 10000.0, "rope.dimension_count": 64, "rope.dimension_count_swa": 32,
            "final_logit_softcapping": 30.0, "expert_count": 3, "expert_used_count": 2,
            "expert_feed_forward_length": 96, "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "gpt-oss": (
        {
            **SIZES, "model_type": "gpt_oss", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 32,
            "rope_theta": 150000.0, "rope_scaling": YARN, "rms_norm_eps": 1e-5,
        },
        {
            "expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 192, "rope.freq_base": 150000.0,
            "attention.sliding_window": 32, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64, "attention.layer_norm_rms_epsilon": 1e-5,
        },
    ),
    "phi3": (
        {
            **SIZES, "model_type": "phi3", "partial_rotary_factor": 0.5, "rope_scaling": LONGROPE,
            "original_max_position_embeddings": 128, "sliding_window": 40, "rms_norm_eps": 1e-5,
        },
        {
            "rope.dimension_count": 16, "rope.scaling.original_context_length": 128, "attention.sliding_window": 40,
            "rope.scaling.attn_factor": 1.125,
            "attention.layer_norm_rms_epsilon": 1e-5,
        },
    ),
    "mistral3": (
        {
            **SIZES, "model_type": "ministral3", "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 64,
                "beta_fast": 24.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.125,
            },
        },
        {
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 24.0, "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.125,
        },
    ),
    "olmo2": ({**SIZES, "model_type": "olmo2"}, {"attention.layer_norm_rms_epsilon": 1e-5}),
    "granite": (
        {**SIZES, "model_type": "granite", **MULTIPLIERS},
        {
            "attention.layer_norm_rms_epsilon": 1e-6, "embedding_scale": 12.0, "residual_scale": 0.25,
            "attention.scale": 0.125, "logit_scale": 8.0,
        },
    ),
    "smollm3": (
        {**SIZES, "model_type": "smollm3", "rope_theta": 5e6, "tie_word_embeddings": False},
        {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 5e6},
    ),
    "falcon": (
        {
            **SIZES, "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2,
            "ffn_hidden_size": 192, "tie_word_embeddings": False,
        },
        {"attention.layer_norm_epsilon": 1e-5},
    ),
    "bloom": (
        {**ALL_HEADS, "model_type": "bloom", "seq_length": 512},
        {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 4, "feed_forward_length": 512},
    ),
    "mpt": (
        {**ALL_HEADS, "model_type": "mpt", "max_seq_len": 512, "expansion_ratio": 4, "norm_type": "layernorm"},
        {
            "attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 4, "feed_forward_length": 512,
            "attention.max_alibi_bias": 8.0,
        },
    ),
    "gptneox": (
        {**ALL_HEADS, "model_type": "gpt_neox", "rotary_pct": 0.25, "use_parallel_residual": False},
        {
            "attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 4, "rope.dimension_count": 8,
            "use_parallel_residual": False,
        },
    ),
}  # fmt: skip
MLA_SIZES: dict[str, Any] = {
    **ALL_HEADS, "kv_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 64,
    "n_routed_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
}  # fmt: skip
MLA_USUAL: dict[str, Any] = {
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.kv_lora_rank": 96, "rope.dimension_count": 16,
    "expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 64, "attention.head_count_kv": 1,
}  # fmt: skip
SPLIT_MLA: dict[str, Any] = {
    "attention.key_length": 112, "attention.value_length": 96, "attention.key_length_mla": 48,
    "attention.value_length_mla": 64,
}  # fmt: skip
# By what is particular: the original's configuration, and the metadata of deepseek2.
LATENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "v2-lite as its first files have it": (
        {
            **MLA_SIZES, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        },
        {
            "attention.key_length": 48, "attention.value_length": 64, "attention.head_count_kv": 4,
            "expert_shared_count": 2, "leading_dense_block_count": 1, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
    "v2 with groups": (
        {
            **MLA_SIZES, "model_type": "deepseek_v2", "q_lora_rank": 32, "n_shared_experts": 1, "n_group": 3,
            "topk_group": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0,
        },
        {
            **SPLIT_MLA, "attention.q_lora_rank": 32, "expert_shared_count": 1, "expert_group_count": 3,
            "expert_group_used_count": 2, "expert_weights_scale": 16.0, "expert_gating_func": 1,
        },
    ),
    "glm with a layer that predicts": (
        {
            **MLA_SIZES, "model_type": "glm4_moe_lite", "q_lora_rank": 32, "n_shared_experts": 1,
            "routed_scaling_factor": 1.75, "rms_norm_eps": 1e-5,
        },
        {
            **SPLIT_MLA, "attention.q_lora_rank": 32, "expert_shared_count": 1, "leading_dense_block_count": 1,
            "expert_weights_scale": 1.75, "expert_weights_norm": True, "expert_gating_func": 2, "block_count": 5,
            "nextn_predict_layers": 1, "attention.layer_norm_rms_epsilon": 1e-5,
        },
    ),
}  # fmt: skip
USUAL: dict[str, Any] = {
    "context_length": 512, "embedding_length": 128, "block_count": 4, "feed_forward_length": 192,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32,
    "rope.freq_base": 10000.0,
}  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "attention_output_norm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm", "mlp_output_norm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps", "mlp.shared.gate_proj": "ffn_gate_shexp",
    "mlp.shared.up_proj": "ffn_up_shexp", "mlp.shared.down_proj": "ffn_down_shexp",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_norm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj": "attn_kv_a_mqa", "self_attn.kv_a_norm": "attn_kv_a_norm",
    "self_attn.key_up_proj": "attn_k_b", "self_attn.value_up_proj": "attn_v_b",
    "dense_output_norm": "post_ffw_norm_1", "experts_norm": "pre_ffw_norm_2",
    "experts_output_norm": "post_ffw_norm_2",
}  # fmt: skip
GEMMA4_OTHERS = {
    "scale": "layer_output_scale.weight",
    "mlp.router.expert_scale": "ffn_down_exps.scale",
    "mlp.router.norm.weight": "ffn_gate_inp.scale",
}
TOP = {
    "model.embed_tokens": "token_embd", "model.embed_norm": "token_embd_norm", "model.norm": "output_norm",
    "lm_head": "output",
}  # fmt: skip


@pytest.mark.parametrize("arch", CASES)
def test_a_file_gives_what_the_folder_does(arch: str, tmp_path: Path) -> None:
    config, own = CASES[arch]
    decoder = describe(config, "config.json")
    tensors = described_tensors(decoder)
    source = open_source(_write(tmp_path / "x.gguf", arch, own, _stored(arch, decoder, tensors)))
    assert source.decoder == decoder
    assert source.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        read = source.tensors[name].read(0, values.shape[0])
        assert not isinstance(read, QuantizedMatrix)
        np.testing.assert_array_equal(read, values, err_msg=name)


@pytest.mark.parametrize("case", LATENTS)
def test_latent_attention(case: str, tmp_path: Path) -> None:
    config, own = LATENTS[case]
    decoder = describe(config, "config.json")
    tensors = described_tensors(decoder)
    path = _write(tmp_path / "x.gguf", "deepseek2", {**MLA_USUAL, **own}, _latent_stored(decoder, tensors, case))
    source = open_source(path)
    assert source.decoder == decoder
    assert source.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        read = source.tensors[name].read(0, values.shape[0])
        np.testing.assert_array_equal(read, values, err_msg=name)
    assert (source.config["head_dim"], source.config["num_key_value_heads"]) == (16, 4), "as transformers has them"


def test_codes_of_latent_attention_are_kept(tmp_path: Path) -> None:
    """Turned keys are stored as the engine has them."""
    config, own = LATENTS["v2 with groups"]
    decoder = describe(config, "config.json")
    stored = _latent_stored(decoder, described_tensors(decoder), "")
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = {
        name: gguf.quantize(values, kind) for name, values in stored.items() if "attn_k_b" in name or "attn_v_b" in name
    }
    path = _write(tmp_path / "x.gguf", "deepseek2", {**MLA_USUAL, **own}, stored, packed, kind)
    source = open_source(path)
    for part, name in (("key_up", "attn_k_b"), ("value_up", "attn_v_b")):
        tensor = source.tensors[f"model.layers.2.self_attn.{part}_proj.weight"]
        assert (tensor.stored, tensor.group) == ("int8", 32)
        read = tensor.read(64, 200)
        assert isinstance(read, QuantizedMatrix)
        exact = gguf.dequantize(packed[f"blk.2.{name}.weight"], kind).reshape(tensor.shape)
        np.testing.assert_array_equal(dequantize(read), exact[64:200])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_gating_func": 2}, "expert_gating_func' is 2 in a file without exp_probs_b"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, "RoPE scaling 'linear'"),
        ({"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor' is not supported"),
        ({"attention.temperature_scale": 0.1}, "temperature_scale' is not supported"),
        ({"expert_weights_norm": True}, "norm_topk_prob"),
    ],
)
def test_what_deepseek2_can_not_do_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config, own = LATENTS["v2 with groups"]
    decoder = describe(config, "config.json")
    stored = _latent_stored(decoder, described_tensors(decoder), "")
    with pytest.raises(UnsupportedModelError, match=message):
        open_source(_write(tmp_path / "x.gguf", "deepseek2", {**MLA_USUAL, **own, **changes}, stored))


def _latent_stored(decoder: Decoder, tensors: Mapping[str, F32], case: str) -> dict[str, F32]:
    """As `_stored`: rotary rows last and in pairs, and, in the first files, keys and values in one matrix."""
    latent = decoder.layer(0).latent
    assert latent is not None
    rope, stored, keys = latent.rope_dim, {}, dict[str, F32]()
    for name, values in tensors.items():
        module, _, kind = name.rpartition(".")
        if not name.startswith("model.layers."):
            stored[f"{TOP[module]}.{kind}"] = values
            continue
        _, _, layer, part = name.split(".", 3)
        if part == "mlp.router.correction_bias":
            stored[f"blk.{layer}.exp_probs_b.bias"] = values
            continue
        part = part.removesuffix(f".{kind}")
        if part in ("self_attn.q_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj"):
            heads = 1 if part == "self_attn.kv_a_proj" else decoder.heads
            by_head = values.reshape(heads, -1, values.shape[1])
            pairs = by_head[:, :rope].reshape(heads, 2, rope // 2, -1).swapaxes(1, 2).reshape(heads, rope, -1)
            values = np.concatenate([by_head[:, rope:], pairs], axis=1).reshape(values.shape)
        elif part.startswith("mlp.experts."):
            values = values.reshape(3, -1, values.shape[1])
        elif part in ("self_attn.key_up_proj", "self_attn.value_up_proj"):
            values = values.reshape(decoder.heads, -1, values.shape[1])
            if case.startswith("v2-lite"):
                keys[part] = values
                if part == "self_attn.value_up_proj":
                    both = np.concatenate([keys["self_attn.key_up_proj"].swapaxes(1, 2), values], axis=1)
                    stored[f"blk.{layer}.attn_kv_b.weight"] = both.reshape(-1, latent.kv_rank)
                continue
        stored[f"blk.{layer}.{NAMES[part]}.{kind}"] = np.ascontiguousarray(values)
    if case.startswith("glm"):
        stored["blk.4.nextn.eh_proj.weight"] = np.ones((8, 8), np.float32)
    return stored


def test_experts_in_mxfp4_keep_their_codes(tmp_path: Path) -> None:
    config, own = CASES["gpt-oss"]
    decoder = describe(config, "config.json")
    stored = _stored("gpt-oss", decoder, described_tensors(decoder))
    kind = gguf.GGMLQuantizationType.MXFP4
    packed = gguf.quantize(stored["blk.1.ffn_up_exps.weight"], kind)
    source = open_source(_write(tmp_path / "x.gguf", "gpt-oss", own, stored, {"blk.1.ffn_up_exps.weight": packed}))
    tensor = source.tensors["model.layers.1.mlp.experts.up_proj.weight"]
    assert (tensor.stored, tensor.group, tensor.shape) == ("lut4", 32, (3 * 192, 128))
    read = tensor.read(100, 300)
    assert isinstance(read, QuantizedMatrix)
    blocks = packed.reshape(3 * 192, -1, 17)[100:300, :, 1:]
    codes = np.concatenate([blocks & 15, blocks >> 4], axis=-1).reshape(200, -1)
    np.testing.assert_array_equal(read.codes, codes)


GEMMA4_WRONG: list[tuple[str, Any, str]] = [
    ("attention.shared_kv_layers", 2, "shared_kv_layers.: such models are read from Hugging Face folders only"),
    ("embedding_length_per_layer_input", 256, "embedding_length_per_layer_input.: such models"),
    ("feed_forward_length", [192, 192, 384, 384], "feed_forward_length"),
    ("attention.sliding_window_pattern", None, "sliding_window_pattern"),
    ("attention.sliding_window_pattern", [True, False], "sliding_window_pattern"),
    ("attention.head_count_kv", [2, 1], "head_count_kv"),
    ("attention.head_count_kv", [0.5] * 4, "head_count_kv"),
    ("block_count", 2**31, "head_count_kv. is not an array of 1024 numbers"),
]


@pytest.mark.parametrize(("key", "value", "named"), GEMMA4_WRONG)
def test_what_gemma4_can_not_be_is_refused(key: str, value: Any, named: str, tmp_path: Path) -> None:
    config, own = CASES["gemma4"]
    decoder = describe(config, "config.json")
    stored = _stored("gemma4", decoder, described_tensors(decoder))
    with pytest.raises(QuantError, match=named):
        open_source(_write(tmp_path / "x.gguf", "gemma4", {**own, key: value}, stored))


def test_olmo3_is_not_taken_for_olmo2(tmp_path: Path) -> None:
    config, own = CASES["olmo2"]
    stored = _stored("olmo2", decoder := describe(config, "config.json"), described_tensors(decoder))
    path = _write(tmp_path / "x.gguf", "olmo2", {**own, "attention.sliding_window": 32}, stored)
    with pytest.raises(UnsupportedModelError, match="OLMo 3 is read from Hugging Face folders only"):
        open_source(path)


@pytest.mark.parametrize("divisors", [[2.0] * 8 + [1e30] * 24, [1e30] * 32, [1.0] * 8])
def test_other_divisors_of_rotary_frequencies_are_refused(divisors: list[float], tmp_path: Path) -> None:
    config, own = CASES["gemma4"]
    decoder = describe(config, "config.json")
    stored = _stored("gemma4", decoder, described_tensors(decoder))
    stored["rope_freqs.weight"] = np.array(divisors, np.float32)
    with pytest.raises(SourceError, match="rope_freqs"):
        open_source(_write(tmp_path / "x.gguf", "gemma4", own, stored))


@pytest.mark.parametrize(("key", "value"), [("attention.clamp_kqv", 6.0), ("attention.max_alibi_bias", 0.0)])
def test_what_mpt_can_not_do_is_refused(key: str, value: float, tmp_path: Path) -> None:
    config, own = CASES["mpt"]
    decoder = describe(config, "config.json")
    stored = _stored("mpt", decoder, described_tensors(decoder))
    with pytest.raises(UnsupportedModelError, match=r"clamp_kqv|alibi"):
        open_source(_write(tmp_path / "x.gguf", "mpt", {**own, key: value}, stored))


def _stored(arch: str, decoder: Decoder, tensors: Mapping[str, F32]) -> dict[str, F32]:
    """A decoder's tensors under GGUF's names, in its row order."""
    two_norms = arch == "falcon"
    norms = {"input_layernorm": "attn_norm_2", "post_attention_layernorm": "attn_norm"} if two_norms else {}
    if arch == "gpt-oss":
        norms = {"post_attention_layernorm": "post_attention_norm"}
    stored = {}
    for name, values in tensors.items():
        module, _, kind = name.rpartition(".")
        if not name.startswith("model.layers."):
            stored[f"{TOP[module]}.{kind}"] = values
            continue
        _, _, layer, part = name.split(".", 3)
        if part == "self_attn.sinks":
            stored[f"blk.{layer}.attn_sinks.weight"] = values
            continue
        if part in GEMMA4_OTHERS:
            stored[f"blk.{layer}.{GEMMA4_OTHERS[part]}"] = values * np.float32(16 if "norm" in part else 1)
            continue
        part = part.removesuffix(f".{kind}")
        if part.startswith("mlp.experts."):
            values = values.reshape(3, -1, *values.shape[1:])
        if arch in ("granite", "smollm3", "mistral3") and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = decoder.heads if part == "self_attn.q_proj" else decoder.kv_heads
            values = values.reshape(heads, 2, 16, -1).swapaxes(1, 2).reshape(values.shape)
        if arch == "granite" and part in ("self_attn.o_proj", "mlp.down_proj"):
            values = values * np.float32(4)
        stored[f"blk.{layer}.{norms.get(part, NAMES[part])}.{kind}"] = values
    if arch in ("phi3", "falcon", "bloom", "mpt", "gptneox"):
        _fuse(stored, ("attn_q", "attn_k", "attn_v"), "attn_qkv")
    if arch == "gemma4":
        for number in range(4):
            gate, up = (stored.pop(f"blk.{number}.ffn_{name}_exps.weight") for name in ("gate", "up"))
            stored[f"blk.{number}.ffn_gate_up_exps.weight"] = np.concatenate([gate, up], axis=1)
        stored["rope_freqs.weight"] = np.array([1.0] * 8 + [1e30] * 24, np.float32)
    if arch == "phi3":
        _fuse(stored, ("ffn_gate", "ffn_up"), "ffn_up")
        stored["rope_factors_short.weight"] = np.array(FACTORS["short_factor"], np.float32)
        stored["rope_factors_long.weight"] = np.array(FACTORS["long_factor"], np.float32)
    return stored


def _fuse(stored: dict[str, F32], parts: tuple[str, ...], whole: str) -> None:
    for layer in range(4):
        for kind in ("weight", "bias"):
            names = [f"blk.{layer}.{part}.{kind}" for part in parts]
            if names[0] in stored:
                stored[f"blk.{layer}.{whole}.{kind}"] = np.concatenate([stored.pop(name) for name in names])


def _write(
    path: Path,
    arch: str,
    own: Mapping[str, Any],
    tensors: Mapping[str, F32],
    packed: Mapping[str, NDArray[np.uint8]] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.MXFP4,
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    names = [*SPECIAL_TOKENS, *(f"[PAD{i}]" for i in range(317))]
    add_tokenizer(writer, names, [3] * 3 + [5] * 317)
    add_metadata(writer, {f"{arch}.{key}": value for key, value in {**USUAL, **own}.items()})
    for name, values in tensors.items():
        if packed is not None and name in packed:
            writer.add_tensor(name, packed[name], raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    finish(writer)
    return path
