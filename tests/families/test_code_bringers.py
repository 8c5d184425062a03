"""Baichuan, Qwen 1 and ChatGLM, which transformers has no classes of: its classes of like models, under their names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from quant.families.rows import alibi_slopes
from tests.families import parity

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
Tensors = dict[str, NDArray[np.float32]]


def test_baichuan_7b(tmp_path: Path) -> None:
    model, tensors = _llama(tmp_path)
    parity.write_folder(tmp_path / "own", {**_baichuan(), "max_position_embeddings": 512}, _packed(tensors))
    parity.check(tmp_path / "own", model)


def test_baichuan_2_divides_rows_of_its_head(tmp_path: Path) -> None:
    model, tensors = _llama(tmp_path, vocab_size=125696)
    head = model.lm_head.weight.data
    head /= head.norm(dim=1, keepdim=True)
    head *= 3.0  # the reference's own logits would be too small to tell models apart
    theirs = parity.reference_logits(model, parity.prompt()) / 3.0
    config = {**_baichuan(), "vocab_size": 125696, "max_position_embeddings": 512}
    parity.write_folder(tmp_path / "own", config, _packed(tensors))
    parity.check_folder(tmp_path / "own", theirs)


def test_baichuan_13b_has_alibi(tmp_path: Path) -> None:
    import torch

    model, tensors = _llama(tmp_path)
    parity.write_folder(tmp_path / "own", {**_baichuan(), "model_max_length": 512}, _packed(tensors))
    ids = parity.prompt()
    zeros = torch.zeros(1, len(ids), 16)
    model.model.rotary_emb.forward = lambda *_, **__: (zeros + 1, zeros)
    positions = torch.arange(len(ids))
    distance = positions[:, None] - positions
    mask = -torch.tensor(alibi_slopes(4))[:, None, None] * distance
    mask = mask.masked_fill(distance < 0, torch.finfo(torch.float32).min)[None]
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0].numpy()
    parity.check_folder(tmp_path / "own", theirs)


def test_qwen(tmp_path: Path) -> None:
    model = parity.random_model("Qwen2", tmp_path / "saved", num_key_value_heads=4, **SIZES)
    stored = load_file(tmp_path / "saved/model.safetensors")
    tensors = {
        "transformer.wte.weight": stored["model.embed_tokens.weight"],
        "lm_head.weight": stored["lm_head.weight"],
    }
    tensors["transformer.ln_f.weight"] = stored["model.norm.weight"]
    for number in range(3):
        old, new = f"model.layers.{number}", f"transformer.h.{number}"
        for kind in ("weight", "bias"):
            parts = [stored[f"{old}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            tensors[f"{new}.attn.c_attn.{kind}"] = np.concatenate(parts)
        renamed = {
            "attn.c_proj": "self_attn.o_proj", "mlp.w2": "mlp.gate_proj", "mlp.w1": "mlp.up_proj",
            "mlp.c_proj": "mlp.down_proj", "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm",
        }  # fmt: skip
        tensors |= {f"{new}.{to}.weight": stored[f"{old}.{name}.weight"] for to, name in renamed.items()}
    config = {
        "model_type": "qwen", "vocab_size": parity.VOCABULARY, "hidden_size": 64, "intermediate_size": 320,
        "num_hidden_layers": 3, "num_attention_heads": 4, "kv_channels": 16, "layer_norm_epsilon": 1e-6,
        "rotary_pct": 1.0, "rotary_emb_base": 10000, "seq_length": 256, "max_position_embeddings": 512,
        "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True, "auto_map": {"AutoModel": "code"},
    }  # fmt: skip
    parity.write_folder(tmp_path / "own", config, tensors)
    assert parity.check(tmp_path / "own", model).max_positions == 256


@pytest.mark.parametrize("bias", [True, False])
def test_chatglm(bias: bool, tmp_path: Path) -> None:
    options = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "attention_bias": bias, "pad_token_id": 0}
    model = parity.random_model("Glm", tmp_path / "saved", partial_rotary_factor=0.5, **options)
    stored = load_file(tmp_path / "saved/model.safetensors")
    tensors = {
        "transformer.embedding.word_embeddings.weight": stored["model.embed_tokens.weight"],
        "transformer.encoder.final_layernorm.weight": stored["model.norm.weight"],
        "transformer.output_layer.weight": stored["lm_head.weight"],
        "transformer.rotary_pos_emb.inv_freq": np.ones(4, np.float32),
    }
    for number in range(3):
        old, new = f"model.layers.{number}", f"transformer.encoder.layers.{number}"
        for kind in ("weight", "bias") if bias else ("weight",):
            parts = [stored[f"{old}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            tensors[f"{new}.self_attention.query_key_value.{kind}"] = np.concatenate(parts)
        renamed = {
            "self_attention.dense": "self_attn.o_proj", "mlp.dense_h_to_4h": "mlp.gate_up_proj",
            "mlp.dense_4h_to_h": "mlp.down_proj", "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "post_attention_layernorm",
        }  # fmt: skip
        tensors |= {f"{new}.{to}.weight": stored[f"{old}.{name}.weight"] for to, name in renamed.items()}
    config = {
        "model_type": "chatglm", "padded_vocab_size": parity.VOCABULARY, "hidden_size": 64, "num_layers": 3,
        "ffn_hidden_size": 160, "kv_channels": 16, "num_attention_heads": 4, "seq_length": 512,
        "multi_query_attention": True, "multi_query_group_num": 2, "layernorm_epsilon": model.config.rms_norm_eps,
        "rmsnorm": True, "add_bias_linear": False, "add_qkv_bias": bias, "original_rope": True,
        "post_layer_norm": True, "tie_word_embeddings": False,
    }  # fmt: skip
    parity.write_folder(tmp_path / "own", config, tensors)
    parity.check(tmp_path / "own", model)


def _llama(folder: Path, **options: Any) -> tuple[Any, Tensors]:
    model = parity.random_model("Llama", folder / "saved", **{**SIZES, **options})
    return model, dict(load_file(folder / "saved/model.safetensors"))


def _baichuan() -> dict[str, Any]:
    own = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"}
    return {"model_type": "baichuan", "vocab_size": parity.VOCABULARY, "rms_norm_eps": 1e-6, **own}


def _packed(tensors: Tensors) -> Tensors:
    for number in range(3):
        prefix = f"model.layers.{number}.self_attn"
        parts = [tensors.pop(f"{prefix}.{part}_proj.weight") for part in "qkv"]
        tensors[f"{prefix}.W_pack.weight"] = np.concatenate(parts)
    return tensors
