"""A GGUF file as a Source: Hugging Face's names, row order and shapes, with the stored codes.

Llama-architecture files keep the rows of Q and K permuted for ggml's "adjacent pairs" RoPE; a row's codes and
scales move together, so the permutation is undone on quantized rows too, without loss. Does not know the
packed layout.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from quant.codes.matrix import F32, QuantizedMatrix
from quant.errors import SourceError, UnsupportedModelError
from quant.sources.file_rows import Permutation, row_reader
from quant.sources.ggml_blocks import BLOCK_TYPES
from quant.sources.gguf_config import hf_config
from quant.sources.gguf_file import GgufFile, GgufTensor, read_gguf
from quant.sources.gguf_tokenizer import write_gguf_tokenizer
from quant.sources.model_config import complete_config
from quant.sources.source import Source, SourceTensor, rounding_note

_TOP_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS: Final = "rope_freqs.weight"


def open_gguf(path: Path) -> Source:
    """Opens a GGUF checkpoint. Raises SourceError (damaged) or UnsupportedModelError (not supported)."""
    gguf = read_gguf(path)
    factors = gguf.tensors.get(_ROPE_FACTORS)
    raw_config = hf_config(gguf, None if factors is None else _float_vector(gguf, _ROPE_FACTORS, factors))
    config, notes = complete_config(raw_config, str(path))
    tensors = {}
    for name, tensor in gguf.tensors.items():
        if name != _ROPE_FACTORS:
            ours = hf_name(gguf, name)
            heads = _permuted_heads(gguf, name, config["num_attention_heads"], config["num_key_value_heads"])
            tensors[ours] = _source_tensor(gguf, name, ours, tensor, heads)
    return Source(
        name=path.name,
        config=config,
        tensors=tensors,
        files=(path,),
        write_tokenizer=lambda folder: write_gguf_tokenizer(gguf, folder, config),
        notes=(*notes, *rounding_note(tensors)),
    )


def hf_name(gguf: GgufFile, name: str) -> str:
    """Hugging Face's name of a tensor. Raises UnsupportedModelError for a tensor that this engine does not use."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise UnsupportedModelError(f"{gguf.path}: has the tensor {name!r}, which this engine does not use")
    return f"model.layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _permuted_heads(gguf: GgufFile, name: str, heads: int, kv_heads: int) -> int:
    """The number of heads whose rows are permuted in this tensor; 0 for none."""
    if gguf.metadata["general.architecture"] != "llama":
        return 0
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if match is None:
        return 0
    return heads if match[1] == "q" else kv_heads


def gguf_order(gguf: GgufFile, name: str, config: Mapping[str, Any]) -> Permutation | None:
    """For each row in Hugging Face's order the row of the tensor `name` that has it; None if the order is the same."""
    heads = _permuted_heads(gguf, name, config["num_attention_heads"], config["num_key_value_heads"])
    return hugging_face_rows(gguf.tensors[name].shape[0], heads) if heads else None


def hugging_face_rows(rows: int, heads: int) -> Permutation:
    """For each row in Hugging Face's order ("rotate half") the GGUF row that holds it.

    Within a head, ggml keeps rotated pairs together: pair j's halves are rows 2j and 2j + 1; Hugging Face has
    all first halves, then all second ones.
    """
    head_dim = rows // heads
    return np.arange(rows).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(rows)


def _source_tensor(gguf: GgufFile, name: str, ours: str, tensor: GgufTensor, heads: int) -> SourceTensor:
    block = BLOCK_TYPES.get(tensor.type_name)
    if block is None:
        known = ", ".join(BLOCK_TYPES)
        raise UnsupportedModelError(f"{gguf.path}: tensor {name!r} is {tensor.type_name}; supported: {known}")
    if len(tensor.shape) > 2:
        raise SourceError(f"{gguf.path}: tensor {name!r} has {len(tensor.shape)} dimensions")
    quantized = block.stored not in ("fp32", "fp16", "bf16")
    if len(tensor.shape) == 1 and quantized:
        raise SourceError(f"{gguf.path}: the vector {name!r} is quantized ({tensor.type_name})")
    if heads and tensor.shape[0] % (2 * heads):
        raise SourceError(f"{gguf.path}: {tensor.shape[0]} rows of {name!r} do not divide into {heads} even heads")
    vector = len(tensor.shape) == 1
    row_bytes = tensor.row_bytes // tensor.shape[0] if vector else tensor.row_bytes
    order = hugging_face_rows(tensor.shape[0], heads) if heads else None
    read_rows = row_reader(gguf.path, tensor.offset, row_bytes, order)

    def read(begin: int, end: int) -> F32 | QuantizedMatrix:
        values = block.decode(read_rows(begin, end))
        return values.reshape(-1) if vector and not isinstance(values, QuantizedMatrix) else values

    return SourceTensor(
        ours,
        tensor.shape,
        block.stored,
        block.group,
        read,
        table=block.table,
        label=tensor.type_name if quantized else "",
        rounded_scales=block.rounded_scales,
    )


def _float_vector(gguf: GgufFile, name: str, tensor: GgufTensor) -> F32:
    values = _source_tensor(gguf, name, name, tensor, 0).read(0, tensor.shape[0])
    if isinstance(values, QuantizedMatrix):
        raise SourceError(f"{gguf.path}: tensor {name!r} is quantized")
    return values
