"""Packed models of a few thousand weights, made on the spot: every shape of the Llama family, no download."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import _native
from quant.codes.int4 import quantize_asym_int4, quantize_sym_int4
from quant.codes.int8 import quantize_int8
from quant.codes.lut4 import NF4, quantize_lut4
from quant.codes.matrix import WeightType
from quant.conversion.plan import matrix_info
from quant.families.description import Decoder
from quant.families.names import engine_tensors
from quant.families.registry import describe, family_of, standard_config
from quant.packed.packed_file import PackedPlan, PackedWriter
from quant.packed.packed_matrix import pack_float, pack_quantized

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
LARGER_LLAMA: Mapping[str, Any] = {**LLAMA, "vocab_size": 999, "hidden_size": 512, "intermediate_size": 1024}
"""Its weights fill several huge pages."""


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, F32]:
    """Weights that keep activations near 1, and norms and biases that are not trivial."""
    return described_tensors(describe(config, "test"), seed)


def described_tensors(decoder: Decoder, seed: int = 0) -> dict[str, F32]:
    """As random_tensors, for a description."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in engine_tensors(decoder).items():
        values = rng.standard_normal(tensor.shape)
        if tensor.role == "vector":
            values = 0.1 * values + (0.0 if name.endswith("bias") else 1.0)
        else:
            values /= np.sqrt(tensor.shape[1]) if tensor.role != "embedding" else 1.0
        tensors[name] = values.astype(np.float32)
    return tensors


def write_model(
    folder: Path,
    raw_config: Mapping[str, Any],
    tensors: Mapping[str, F32],
    kind: WeightType = "fp32",
    group: int = 32,
    others: Mapping[str, WeightType] | None = None,
) -> Path:
    """Writes a packed model folder without a tokenizer; returns it.

    Matrices are of one type, but those whose name has a key of `others` in it.
    """
    decoder = describe(raw_config, "test")
    config = standard_config(raw_config, decoder, family_of(raw_config, "test"))
    return write_described(folder, decoder, config, tensors, kind, group, others)


def write_described(
    folder: Path,
    decoder: Decoder,
    config: Mapping[str, Any],
    tensors: Mapping[str, F32],
    kind: WeightType = "fp32",
    group: int = 32,
    others: Mapping[str, WeightType] | None = None,
) -> Path:
    """As write_model, from a description, which may be of a model that no family describes."""
    expected = engine_tensors(decoder)

    def kind_of(name: str) -> WeightType:
        if expected[name].role == "router":
            return "fp32"
        return next((other for part, other in (others or {}).items() if part in name), kind)

    matrices = {
        name: matrix_info(name, kind_of(name), tensor, group)
        for name, tensor in expected.items()
        if tensor.role != "vector"
    }
    vectors = {name: tensor.shape[0] for name, tensor in expected.items() if tensor.role == "vector"}
    plan = PackedPlan(decoder=decoder, matrices=matrices, vectors=vectors, qtype=kind, group_size=group, source="test")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    with PackedWriter(folder / "model.safetensors", plan) as writer:
        for name, _ in plan.order():
            if name in matrices:
                writer.write_tensor(name, [_pack(name, tensors[name], kind_of(name), group)])
            elif name in vectors:
                writer.write_tensor(name, [tensors[name]])
    return folder


def _pack(name: str, values: F32, kind: WeightType, group: int) -> NDArray[np.uint8]:
    if kind == "sym_int4":
        return pack_quantized(quantize_sym_int4(name, values, group))
    if kind == "asym_int4":
        return pack_quantized(quantize_asym_int4(name, values, group))
    if kind == "lut4":
        return pack_quantized(quantize_lut4(name, values, group, NF4))
    if kind == "int8":
        return pack_quantized(quantize_int8(name, values, group))
    return pack_float(values, kind)


def write_random_model(
    folder: Path, config: Mapping[str, Any] = LLAMA, kind: WeightType = "fp32", group: int = 32
) -> Path:
    """A packed model of random weights."""
    return write_model(folder, config, random_tensors(config), kind, group)


class Sequences:
    """A native model whose sequences have their own pages, scattered over the pool."""

    def __init__(
        self, folder: "Path | _native.ModelFiles", *, sequences: int = 4, context: int = 256, **options: Any
    ) -> None:
        pages = -(-context // _native.PAGE_TOKENS) * sequences
        options = {"threads": 1, "compute_type": "fp32", "kv_type": "fp32", "state_pages": pages, **options}
        self.model = _native.Model(
            str(folder) if isinstance(folder, Path) else folder,
            kv_pages=pages,
            max_sequences=sequences,
            max_step_tokens=context * sequences,
            max_context_tokens=context,
            **options,
        )
        table = self.model.page_table
        scattered = np.random.default_rng(7).permutation(pages).astype(np.int32)
        # States are a group with page numbers of their own.
        table[:] = scattered.reshape(table.shape[-2:])
        self._lengths = [0] * sequences

    def arrays(self, chunks: Mapping[int, list[int]]) -> tuple[I32, I32, I32, I32, I32]:
        """The arrays of a step that appends each chunk to the sequence of that slot."""
        ids = [token for chunk in chunks.values() for token in chunk]
        positions = [self._lengths[slot] + i for slot, chunk in chunks.items() for i in range(len(chunk))]
        lengths = [len(chunk) for chunk in chunks.values()]
        before = [self._lengths[slot] for slot in chunks]
        for slot, chunk in chunks.items():
            self._lengths[slot] += len(chunk)
        ids_array, positions_array, slots, lengths_array, before_array = (
            np.array(values, dtype=np.int32) for values in (ids, positions, list(chunks), lengths, before)
        )
        return ids_array, positions_array, slots, lengths_array, before_array

    def rewind(self, slot: int, length: int) -> None:
        """Says that a sequence has so many tokens."""
        self._lengths[slot] = length

    def logits(self, chunks: Mapping[int, list[int]]) -> F32:
        """Logits of all new tokens, one chunk's after the other."""
        return self.model.logits(*self.arrays(chunks))


MakeModel = Callable[..., Sequences]
"""The fixture that makes a model of random weights: its configuration, weight type, group and tier, then options."""
