"""Small checkpoints, made by code: Hugging Face folders and GGUF files of the same random model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from quant.families.names import engine_tensors
from quant.families.registry import describe, family_of

F32 = NDArray[np.float32]

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NUMPY_TYPES: Mapping[str, Any] = {"fp32": np.float32, "fp16": np.float16, "bf16": bfloat16}

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared.gate_proj": "ffn_gate_shexp",
    "mlp.shared.up_proj": "ffn_up_shexp",
    "mlp.shared.down_proj": "ffn_down_shexp",
    "mlp.shared_gate": "ffn_gate_inp_shexp",
}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, F32]:
    """Random weights that fp16 and bf16 both hold exactly (seven significant bits)."""
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in engine_tensors(describe(config, "test")).items():
        values = generator.standard_normal(tensor.shape).astype(np.float32)
        tensors[name] = np.rint(values * np.float32(32)).clip(-127, 127).astype(np.float32) / np.float32(64)
    return tensors


def byte_tokenizer() -> Tokenizer:
    names = [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet())]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": []},
    }
    return Tokenizer.from_str(json.dumps(description))


def write_hf_folder(
    folder: Path,
    tensors: Mapping[str, F32],
    config: Mapping[str, Any] = CONFIG,
    *,
    dtype: str = "fp32",
    shards: int = 1,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    stored = {name: values.astype(NUMPY_TYPES[dtype]) for name, values in tensors.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map: dict[str, str] = {}
    names = sorted(stored)
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: stored[name] for name in names[number::shards]}
        save_file(part, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_checkpoint(folder: Path, config: Mapping[str, Any], dtype: str = "fp32") -> dict[str, F32]:
    """A folder with the tensors as the family stores them, in three files; returns the engine's."""
    tensors = random_tensors(config)
    tensors |= {name: np.ones_like(values) for name, values in tensors.items() if name.endswith(".decay")}
    found: dict[str, list[tuple[NDArray[np.int64], F32]]] = {}
    for name, tensor in family_of(config, "x").tensors(config, describe(config, "x")).items():
        for piece, part in zip(tensor.pieces, np.split(tensors[name], len(tensor.pieces)), strict=True):
            assert not isinstance(piece.rows, slice)
            rows = np.arange(len(part)) if piece.rows is None else piece.rows
            values = (part - np.float32(piece.offset)) / np.float32(piece.scale)
            found.setdefault(piece.name, []).append((rows, np.log(values) if piece.exponential else values))
    stored = {name: np.concatenate([values for _, values in parts]) for name, parts in found.items()}
    for name, parts in found.items():
        stored[name][np.concatenate([rows for rows, _ in parts])] = stored[name].copy()
    write_hf_folder(folder, stored, config, dtype=dtype, shards=3)
    return tensors


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def permuted(values: F32, heads: int) -> F32:
    """Query or key rows as llama.cpp's converter orders them for its llama architecture."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _writer(path: Path, config: Mapping[str, Any], arch: str, extra: Mapping[str, Any] | None) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    names = [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), "ab"]
    names += [f"[PAD{i}]" for i in range(config["vocab_size"] - len(names))]
    add_tokenizer(writer, names, [3] * 3 + [1] * 257 + [5] * (config["vocab_size"] - 260))
    add_metadata(writer, extra or {})
    return writer


def write_random_blocks(
    path: Path, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], kind: gguf.GGMLQuantizationType
) -> Path:
    """A GGUF whose matrices are random blocks of a type that the gguf package can't write, their scales small."""
    generator = np.random.default_rng(5)
    writer = _writer(path, config, "llama", None)
    size, block = gguf.GGML_QUANT_SIZES[kind]
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(gguf_name(name), np.ones(shape, np.float32))
            continue
        raw = generator.integers(0, 256, (shape[0], shape[1] // size, block), np.uint8)
        for at in (0, 2) if kind is gguf.GGMLQuantizationType.Q4_K else (0,):
            scales = generator.uniform(0.001, 0.002, raw.shape[:2]).astype(np.float16)
            raw[..., at : at + 2] = scales.view(np.uint8).reshape(*raw.shape[:2], 2)
        writer.add_tensor(gguf_name(name), raw.reshape(shape[0], -1), raw_dtype=kind)
    finish(writer)
    return path


def write_gguf(
    path: Path,
    tensors: Mapping[str, F32],
    config: Mapping[str, Any] = CONFIG,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    arch: str = "llama",
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, F32] | None = None,
    router_kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """A GGUF as llama.cpp's converter writes it; matrices are stored as `kind`, routers as `router_kind`."""
    writer = _writer(path, config, arch, extra)
    counts = {name: tensor.count for name, tensor in engine_tensors(describe(config, "test")).items()}
    for name, values in tensors.items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        part = name.split(".")[-2]
        rows = permuted(values, heads[part]) if arch == "llama" and part in heads else values
        stored_kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else router_kind if ".router." in name else kind
        if counts.get(name, 1) > 1:
            rows = rows.reshape(counts[name], -1, rows.shape[1])
        writer.add_tensor(gguf_name(name), gguf.quantize(rows, stored_kind), raw_dtype=stored_kind)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    finish(writer)
    return path


def add_tokenizer(writer: gguf.GGUFWriter, tokens: Sequence[str], kinds: Sequence[int], pre: str = "smollm") -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")


def add_metadata(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    """Adds or replaces metadata, the type chosen by the Python type; None removes a key."""
    for key, value in values.items():
        writer.kv_data[0].pop(key, None)
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
