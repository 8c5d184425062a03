"""Checkpoints of tiny models as AutoGPTQ, AutoAWQ and compressed-tensors write them, packed element by element.

Written from the formats' descriptions, one code at a time, so that nothing of the readers' reasoning is shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.quant.checkpoints import CONFIG, F32, random_tensors, write_hf_folder

AWQ_PLACE = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}  # output within eight -> nibble of the word


@dataclass
class Layer:
    """w[o, i] = scale[o, g] * (code[o, i] - zero[o, g]), g = group[i]."""

    codes: NDArray[np.uint8]
    scales: NDArray[Any]
    zeros: NDArray[np.int64]
    group: NDArray[np.int64]

    @property
    def values(self) -> F32:
        zeros, scales = self.zeros[:, self.group], self.scales.astype(np.float32)[:, self.group]
        return ((self.codes.astype(np.int64) - zeros).astype(np.float32) * scales).astype(np.float32)


def random_layer(
    generator: np.random.Generator, rows: int, cols: int, group_size: int, *, symmetric: bool, scattered: bool = False
) -> Layer:
    groups = -(-cols // group_size)
    group = np.arange(cols) // group_size
    if scattered:
        group = generator.permutation(group)
    return Layer(
        generator.integers(0, 16, (rows, cols), np.uint8),
        generator.uniform(0.005, 0.02, (rows, groups)).astype(np.float16),
        np.full((rows, groups), 8) if symmetric else generator.integers(1, 16, (rows, groups)),
        group.astype(np.int64),
    )


def pack(values: NDArray[Any], axis: int, place: Mapping[int, int] | None = None) -> NDArray[np.int32]:
    """Eight values along an axis become a word; value j of eight goes to nibble place[j]."""
    values = np.moveaxis(np.asarray(values), axis, 0)
    words = np.zeros((-(-len(values) // 8), *values.shape[1:]), np.uint64)
    for index, row in enumerate(values):
        nibble = index % 8 if place is None else place[index % 8]
        words[index // 8] |= row.astype(np.uint64) << np.uint64(4 * nibble)
    return np.ascontiguousarray(np.moveaxis(words.astype(np.uint32).view(np.int32), 0, axis))


def gptq(layer: Layer, name: str, *, v2: bool = False) -> dict[str, NDArray[Any]]:
    return {
        f"{name}.qweight": pack(layer.codes.T, 0),
        f"{name}.qzeros": pack(layer.zeros.T - (0 if v2 else 1), 1),
        f"{name}.scales": np.ascontiguousarray(layer.scales.T),
        f"{name}.g_idx": layer.group.astype(np.int32),
    }


def awq(layer: Layer, name: str) -> dict[str, NDArray[Any]]:
    return {
        f"{name}.qweight": pack(layer.codes.T, 1, AWQ_PLACE),
        f"{name}.qzeros": pack(layer.zeros.T, 1, AWQ_PLACE),
        f"{name}.scales": np.ascontiguousarray(layer.scales.T),
    }


def compressed(layer: Layer, name: str, *, symmetric: bool) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {
        f"{name}.weight_packed": pack(layer.codes, 1),
        f"{name}.weight_scale": layer.scales.astype(bfloat16),
        f"{name}.weight_shape": np.array(layer.codes.shape, np.int64),
    }
    layer.scales = layer.scales.astype(bfloat16)
    return tensors if symmetric else tensors | {f"{name}.weight_zero_point": pack(layer.zeros, 0)}


def compressed_config(group_size: int, symmetric: bool) -> dict[str, Any]:
    strategy = "channel" if group_size == -1 else "group"
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": group_size}
    if group_size == -1:
        weights["group_size"] = None
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def write_packed_folder(
    folder: Path, kind: str, group_size: int, *, symmetric: bool, scattered: bool = False
) -> tuple[Path, dict[str, F32]]:
    """Writes the folder; returns it and every tensor's values."""
    generator = np.random.default_rng(9)
    expected = random_tensors(CONFIG)
    stored: dict[str, NDArray[Any]] = {}
    for name, values in expected.items():
        if not name.endswith("_proj.weight"):
            stored[name] = values
            continue
        width = values.shape[1] if group_size == -1 else group_size
        rows, cols = values.shape
        layer = random_layer(generator, rows, cols, width, symmetric=symmetric, scattered=scattered)
        base = name.removesuffix(".weight")
        if kind == "awq":
            stored |= awq(layer, base)
        elif kind == "compressed-tensors":
            stored |= compressed(layer, base, symmetric=symmetric)
        else:
            stored |= gptq(layer, base, v2=kind == "gptq_v2")
        expected[name] = layer.values
    quantization: dict[str, Any] = {"quant_method": kind, "bits": 4, "group_size": group_size}
    if kind == "gptq_v2":
        quantization |= {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    if kind == "compressed-tensors":
        quantization = compressed_config(group_size, symmetric)
    write_hf_folder(folder, {}, {**CONFIG, "quantization_config": quantization})
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder, expected
