"""GGUFs of LFM2 give what the original folders do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from quant.errors import SourceError, UnsupportedModelError
from quant.families.registry import describe
from quant.sources.open_source import open_source
from tests.kernels.tiny_model import described_tensors
from tests.quant.checkpoints import SPECIAL_TOKENS, add_metadata, add_tokenizer, finish

F32 = NDArray[np.float32]
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512, "rope_theta": 1e6, "norm_eps": 1e-5,
    "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_dense_layers": 1}
COUNTS = {
    "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64, "leading_dense_block_count": 1,
    "expert_gating_func": 2,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lfm2": ({**SIZES, "model_type": "lfm2"}, {}),
    "lfm2moe": ({**SIZES, **EXPERTS, "model_type": "lfm2_moe"}, COUNTS),
}
METADATA: dict[str, Any] = {
    "context_length": 512, "embedding_length": 64, "block_count": 3, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0], "rope.freq_base": 1e6,
    "attention.layer_norm_rms_epsilon": 1e-5, "shortconv.l_cache": 3,
}  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "conv.input_proj": "shortconv.in_proj",
    "conv.output_proj": "shortconv.out_proj", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "token_embd_norm.weight"}


@pytest.mark.parametrize("arch", CASES)
def test_a_file_gives_what_the_folder_does(arch: str, tmp_path: Path) -> None:
    decoder = describe(CASES[arch][0], "config.json")
    tensors = described_tensors(decoder)
    source = open_source(write(tmp_path / "x.gguf", arch, stored(tensors)))
    assert source.decoder == decoder
    assert source.config["model_type"] == CASES[arch][0]["model_type"]
    assert source.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        np.testing.assert_array_equal(source.tensors[name].read(0, values.shape[0]), values, err_msg=name)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"attention.head_count_kv": [0, 2]}, SourceError, "'lfm2moe.attention.head_count_kv' is not an array of 3"),
        ({"attention.head_count_kv": [1, 2, 0]}, UnsupportedModelError, "head_count_kv' has several numbers"),
        ({"shortconv.l_cache": None}, SourceError, "lacks the metadata key 'lfm2moe.shortconv.l_cache'"),
        ({"shortconv.l_cache": 9}, UnsupportedModelError, "conv_L_cache.* is 9; up to 8 are run"),
        ({"expert_gating_func": 1}, UnsupportedModelError, "expert_gating_func' is not sigmoid"),
    ],
)
def test_what_does_not_fit_is_named(
    metadata: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    tensors = described_tensors(describe(CASES["lfm2moe"][0], "config.json"))
    with pytest.raises(error, match=message):
        open_source(write(tmp_path / "x.gguf", "lfm2moe", stored(tensors), metadata))


def stored(tensors: Mapping[str, F32]) -> dict[str, F32]:
    """A decoder's tensors under GGUF's names."""
    written: dict[str, F32] = {}
    for name, values in tensors.items():
        if name in TOP:
            written[TOP[name]] = values
            continue
        _, _, layer, part = name.split(".", 3)
        if part == "mlp.router.correction_bias":
            written[f"blk.{layer}.exp_probs_b.bias"] = values
            continue
        if part.startswith("mlp.experts."):
            values = values.reshape(4, -1, values.shape[1])
        if part == "conv.taps":
            written[f"blk.{layer}.shortconv.conv.weight"] = values.reshape(3, -1).T
            continue
        written[f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"] = values
    return written


def write(path: Path, arch: str, tensors: Mapping[str, F32], metadata: Mapping[str, Any] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    add_tokenizer(writer, [*SPECIAL_TOKENS, *(f"[PAD{i}]" for i in range(317))], [3] * 3 + [5] * 317, pre="lfm2")
    own = {**METADATA, **CASES[arch][1], **(metadata or {})}
    add_metadata(writer, {f"{arch}.{key}": value for key, value in own.items()})
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=Kind.F32)
    finish(writer)
    return path
