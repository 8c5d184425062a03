"""A GGUF's names and row order: which stored tensors make the engine's.

Files of the llama architecture keep the rows of Q and K permuted for ggml's "adjacent pairs" RoPE; here they become
pieces in the order "rotate half". Does not know how bytes are decoded.
"""

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quant.errors import UnsupportedModelError
from quant.families.description import Decoder
from quant.families.family import Piece, Tensor
from quant.families.modules import Modules, module_and_kind, piece_of
from quant.families.standard import assembled
from quant.sources.gguf_architectures import ARCHITECTURES, fused

_TOP: Final = {
    "model.embed_tokens": "token_embd",
    "model.embed_norm": "token_embd_norm",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "attention_output_norm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp_output_norm": "post_ffw_norm",
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
_OTHERS: Final = {"self_attn.sinks": "attn_sinks.weight", "mlp.router.correction_bias": "exp_probs_b.bias"}
_PERMUTED: Final = ("llama",)
"""Architectures whose Q and K rows are stored as adjacent pairs, of those that are not in `gguf_architectures`."""


def gguf_tensors(
    arch: str, decoder: Decoder, residual_scale: float = 1.0, stored: Collection[str] = ()
) -> dict[str, Tensor]:
    """Every tensor of the engine with the rows of a GGUF of that architecture.

    residual_scale: what the outputs of attention and MLP are multiplied by, if the file says so. stored: the file's
    tensors, where their names tell how it stores some.
    """
    orders = {}
    architecture = ARCHITECTURES.get(arch)
    parts = architecture.parts(decoder) if architecture is not None else {}
    if arch in _PERMUTED or (architecture is not None and architecture.permuted):
        orders = {
            "q_proj": rotate_half_rows(decoder.heads, decoder.head_dim),
            "k_proj": rotate_half_rows(decoder.kv_heads, decoder.head_dim),
        }

    joined = fused(decoder) if _has_joined(stored, parts) else {}

    def pieces(name: str) -> tuple[Piece, ...]:
        _, _, layer, rest = name.split(".", 3) if name.startswith("model.layers.") else ("", "", "", name)
        if layer and architecture is not None and architecture.pieces is not None:
            own = architecture.pieces(decoder, stored, int(layer), rest)
            if own is not None:
                return own
        part, kind = module_and_kind(rest)
        if part in parts:
            return (piece_of(parts[part], f"blk.{layer}." if layer else "", kind),)
        if part in joined and f"blk.{layer}.attn_qkv.{kind}" in stored:
            at = joined[part].rows
            assert isinstance(at, slice)
            order = orders.get(part.rpartition(".")[2])
            return (Piece(f"blk.{layer}.attn_qkv.{kind}", at if order is None else order + at.start),)
        scale = residual_scale if part in ("self_attn.o_proj", "mlp.down_proj") else 1.0
        return (Piece(gguf_name(name), orders.get(name.split(".")[-2]), scale=scale),)

    return assembled(decoder, pieces)


def _has_joined(stored: Collection[str], parts: Modules) -> bool:
    """Whether queries, keys and values are one matrix, in a file of an architecture that mostly has three."""
    return "self_attn.q_proj" not in parts and "blk.0.attn_qkv.weight" in stored and "blk.0.attn_q.weight" not in stored


def gguf_name(name: str) -> str:
    """The GGUF's name of one of the engine's tensors."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, layer, part = name.split(".", 3)
    if part in _OTHERS:
        return f"blk.{layer}.{_OTHERS[part]}"
    stem = part.rpartition(".")[0]
    if stem not in _LAYER:
        raise UnsupportedModelError(f"GGUF has no tensor for {name!r}")
    return f"blk.{layer}.{_LAYER[stem]}.{kind}"


def rotate_half_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """For each row in the order "rotate half", the GGUF row that holds it.

    Within a head, ggml keeps rotated pairs together: pair j's halves are rows 2j and 2j + 1; the engine has all first
    halves, then all second ones.
    """
    rows = np.arange(heads * head_dim, dtype=np.int64)
    return rows.reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
