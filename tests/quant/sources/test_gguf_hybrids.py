"""GGUFs of Gated DeltaNet models, in llama.cpp's order of heads, give what the original folders do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from quant.codes.dequantize import dequantize
from quant.codes.matrix import QuantizedMatrix
from quant.errors import SourceError
from quant.families.description import Decoder
from quant.families.qwen3_next import delta_of
from quant.families.registry import describe
from quant.sources.open_source import open_source
from tests.kernels.tiny_model import described_tensors
from tests.quant.checkpoints import SPECIAL_TOKENS, add_metadata, add_tokenizer, finish

F32 = NDArray[np.float32]
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 512, "rope_theta": 1e7, "rms_norm_eps": 1e-6,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "layer_types": [*["linear_attention"] * 3, "full_attention", "linear_attention"], "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 32,
}  # fmt: skip
COUNTS = {
    "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64,
    "expert_shared_feed_forward_length": 32,
}  # fmt: skip
GUESSING = {"block_count": 6, "nextn_predict_layers": 1}
# By architecture: the original's configuration, and the metadata that only this architecture has.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3next": ({**SIZES, **EXPERTS, "model_type": "qwen3_next"}, COUNTS),
    "qwen35": ({**SIZES, "model_type": "qwen3_5_text"}, {"feed_forward_length": 96, **GUESSING}),
    "qwen35moe": ({**SIZES, **EXPERTS, "model_type": "qwen3_5_moe_text"}, {**COUNTS, **GUESSING}),
}
METADATA: dict[str, Any] = {
    "context_length": 512, "embedding_length": 64, "block_count": 5, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 1e7,
    "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": 8, "ssm.conv_kernel": 4, "ssm.state_size": 16,
    "ssm.group_count": 2, "ssm.time_step_rank": 6, "ssm.inner_size": 192, "full_attention_interval": 4,
    "rope.dimension_sections": [2, 1, 1, 0],
}  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.router": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared.gate_proj": "ffn_gate_shexp", "mlp.shared.up_proj": "ffn_up_shexp",
    "mlp.shared.down_proj": "ffn_down_shexp", "mlp.shared_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PREFIX = "model.layers.1.delta"


@pytest.mark.parametrize("arch", CASES)
def test_a_file_gives_what_the_folder_does(arch: str, tmp_path: Path) -> None:
    decoder, tensors = made(arch)
    source = open_source(write(tmp_path / "x.gguf", arch, stored(arch, decoder, tensors)))
    assert source.decoder == decoder
    assert source.config["model_type"] == CASES[arch][0]["model_type"]
    assert source.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        read = source.tensors[name].read(0, values.shape[0])
        assert not isinstance(read, QuantizedMatrix)
        np.testing.assert_array_equal(read, values, err_msg=name)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
def test_codes_follow_the_order_of_value_heads(arch: str, kind: Kind, tmp_path: Path) -> None:
    """A head has 32 numbers, and so does a block: rows and whole blocks move, and no code changes."""
    decoder, tensors = made(arch)
    source = open_source(write(tmp_path / "x.gguf", arch, stored(arch, decoder, tensors), kind))
    for name in (f"{PREFIX}.qkv_proj.weight", f"{PREFIX}.gate_proj.weight", f"{PREFIX}.output_proj.weight"):
        assert (source.tensors[name].group, source.tensors[name].rounded_scales) == (32, False)
        read = source.tensors[name].read(5, 40)
        assert isinstance(read, QuantizedMatrix)
        expected = gguf.dequantize(gguf.quantize(tensors[name], kind), kind)[5:40]
        np.testing.assert_array_equal(dequantize(read), expected, err_msg=name)
    beta = source.tensors[f"{PREFIX}.beta_proj.weight"]
    assert (beta.stored, beta.group) == ("fp32", 0)


def test_values_are_read_where_a_head_is_less_than_a_block(tmp_path: Path) -> None:
    decoder, tensors = made("qwen35", {"linear_value_head_dim": 16})
    metadata = {"ssm.inner_size": 96}
    path = write(tmp_path / "x.gguf", "qwen35", stored("qwen35", decoder, tensors), Kind.Q8_0, metadata)
    name = f"{PREFIX}.output_proj.weight"
    tensor = open_source(path).tensors[name]
    assert (tensor.stored, tensor.group) == ("other_fine", 0)
    read = tensor.read(0, 64)
    assert not isinstance(read, QuantizedMatrix)
    tiled = tensors[name].reshape(64, 2, 3, 16).swapaxes(1, 2).reshape(64, 96)
    rounded = gguf.dequantize(gguf.quantize(tiled, Kind.Q8_0), Kind.Q8_0)
    np.testing.assert_array_equal(read, rounded.reshape(64, 3, 2, 16).swapaxes(1, 2).reshape(64, 96))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"nextn_predict_layers": 6}, "of 6 blocks, 6 are said to guess further tokens"),
        ({"ssm.group_count": 4}, "6 value heads .linear_num_value_heads. and 4 key heads .* do not fit together"),
        ({"ssm.state_size": None}, "lacks the metadata key 'qwen35.ssm.state_size'"),
        ({"nextn_predict_layers": 0}, "lacks the tensor 'blk.5.attn_norm.weight'"),
    ],
)
def test_what_does_not_fit_is_named(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    decoder, tensors = made("qwen35")
    with pytest.raises(SourceError, match=message):
        open_source(write(tmp_path / "x.gguf", "qwen35", stored("qwen35", decoder, tensors), metadata=metadata))


def made(arch: str, changes: Mapping[str, Any] | None = None) -> tuple[Decoder, dict[str, F32]]:
    decoder = describe({**CASES[arch][0], **(changes or {})}, "config.json")
    return decoder, described_tensors(decoder)


def stored(arch: str, decoder: Decoder, tensors: Mapping[str, F32]) -> dict[str, F32]:
    """A decoder's tensors under GGUF's names, in its order."""
    written: dict[str, F32] = {}
    for name, values in tensors.items():
        module, _, kind = name.rpartition(".")
        if not name.startswith("model.layers."):
            written[f"{TOP[module]}.{kind}"] = values
            continue
        _, _, layer, part = name.split(".", 3)
        if part.startswith("mlp.experts."):
            values = values.reshape(4, -1, values.shape[1])
        part = part.removesuffix(f".{kind}")
        if part in NAMES:
            written[f"blk.{layer}.{NAMES[part]}.{kind}"] = values
    for number in range(len(decoder.layers)):
        prefix, own = f"model.layers.{number}.", {}
        if decoder.layer(number).delta is None:
            parts = [tensors[f"{prefix}self_attn.{part}_proj.weight"].reshape(4, 1, 32, 64) for part in ("q", "gate")]
            own["attn_q.weight"] = np.concatenate(parts, axis=1).reshape(-1, 64)
        else:
            own = delta_tensors(arch, decoder, {k.removeprefix(prefix): v for k, v in tensors.items()})
        written |= {f"blk.{number}.{name}": values for name, values in own.items()}
    if arch != "qwen3next":
        written |= {f"blk.5.{name}.weight": np.ones((4, 64), np.float32) for name in ("attn_k", "nextn.eh_proj")}
    return written


def delta_tensors(arch: str, decoder: Decoder, tensors: Mapping[str, F32]) -> dict[str, F32]:
    delta = delta_of(decoder)
    assert delta is not None
    groups, each, keys = delta.key_heads, delta.value_heads // delta.key_heads, 2 * delta.key_heads * delta.key_dim

    def tiled(values: F32) -> F32:
        """Heads by key head become every key head's first, then every one's second."""
        if arch == "qwen3next":
            return values
        return values.reshape(groups, each, -1).swapaxes(0, 1).reshape(values.shape)

    qkv, conv = tensors["delta.qkv_proj.weight"], tensors["delta.conv.weight"].reshape(-1, delta.taps)
    beta, decay = (tensors[f"delta.{part}_proj.weight"] for part in ("beta", "decay"))
    output = tensors["delta.output_proj.weight"]
    written = {
        "attn_qkv.weight": np.concatenate([qkv[:keys], tiled(qkv[keys:])]),
        "attn_gate.weight": tiled(tensors["delta.gate_proj.weight"]),
        "ssm_conv1d.weight": np.concatenate([conv[:keys], tiled(conv[keys:])]),
        "ssm_a": -tiled(tensors["delta.decay"]),
        "ssm_dt.bias": tiled(tensors["delta.decay_bias"]),
        "ssm_norm.weight": tensors["delta.norm.weight"],
        "ssm_out.weight": np.stack([tiled(row) for row in output]),
    }
    if arch == "qwen3next":
        by_key_head = [part.reshape(groups, each, -1) for part in (beta, decay)]
        return written | {"ssm_ba.weight": np.concatenate(by_key_head, axis=1).reshape(2 * len(beta), -1)}
    return written | {"ssm_beta.weight": tiled(beta), "ssm_alpha.weight": tiled(decay)}


def write(
    path: Path, arch: str, tensors: Mapping[str, F32], kind: Kind = Kind.F32, metadata: Mapping[str, Any] | None = None
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    add_tokenizer(writer, [*SPECIAL_TOKENS, *(f"[PAD{i}]" for i in range(317))], [3] * 3 + [5] * 317, pre="qwen35")
    own = {**METADATA, **CASES[arch][1], **(metadata or {})}
    add_metadata(writer, {f"{arch}.{key}": value for key, value in own.items()})
    for name, values in tensors.items():
        own_kind = kind if values.ndim > 1 and not name.rpartition(".")[0].endswith(FLOATS) else Kind.F32
        writer.add_tensor(name, gguf.quantize(values, own_kind), raw_dtype=own_kind)
    finish(writer)
    return path


FLOATS = ("ssm_conv1d", "ssm_alpha", "ssm_beta", "ssm_ba", "ffn_gate_inp")
