"""Weights that a folder stores as 8-bit floats, with their scales beside them: one for a matrix, a row or a block.

They are read as fp32 values, code times scale, and the conversion rounds them as it does others: the engine has no such
type. What the same folders have for 8-bit activations and keys is left out. Knows no family.

Sources: DeepSeek-V3's README_WEIGHTS.md (`NAME_scale_inv`, blocks of 128 by 128, multiplied in spite of its name),
transformers' finegrained_fp8 (also one scale for a matrix, and stacks of matrices), compressed-tensors'
`float-quantized` (`NAME_scale`: for a matrix, a row or a block).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from quant.codes.fp8 import e4m3_to_fp32
from quant.codes.matrix import F32
from quant.errors import SourceError
from quant.sources.file_rows import row_reader
from quant.sources.packed_layers import StoredIn
from quant.sources.source import SourceTensor

FP8: Final = "F8_E4M3"
_SCALES: Final = ("_scale_inv", "_scale")
_OF_ACTIVATIONS: Final = ("activation_scale", "input_scale", "output_scale", ".k_scale", ".v_scale")


def is_fp8(quantization: Any) -> bool:
    """Whether a `quantization_config` says that weights are FP8."""
    if not isinstance(quantization, dict):
        return False
    if quantization.get("quant_method") == "compressed-tensors":
        return quantization.get("format") == "float-quantized"
    return quantization.get("quant_method") == "fp8"


def fp8_weights(
    stored: Mapping[str, StoredIn], quantization: Mapping[str, Any], where: str
) -> tuple[dict[str, SourceTensor], dict[str, StoredIn]]:
    """Splits the tensors into FP8 weights and the rest.

    quantization: for which `is_fp8` holds; where: its file. Raises SourceError where weights and scales don't fit.
    """
    block = _block(quantization, where)
    weights, companions = {}, set()
    for name, codes in stored.items():
        if codes.tensor.dtype == FP8:
            scales = next((stored[name + end] for end in _SCALES if name + end in stored), None)
            if scales is None:
                raise codes.refuse(f"is {FP8} and has no scales beside it ({' or '.join(_SCALES)})")
            weights[name] = _checked(codes, scales, block).opened()
            companions.add(scales.name)
    others = {
        name: each
        for name, each in stored.items()
        if name not in weights and name not in companions and not name.endswith(_OF_ACTIVATIONS)
    }
    return weights, others


def _block(quantization: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    """The rows and inputs of a block; None if scales are per matrix or row."""
    found = [quantization.get("weight_block_size")]
    schemes = quantization.get("config_groups", {})
    if not isinstance(schemes, dict):
        raise SourceError(f"{where}: its config_groups are {schemes!r}, not an object")
    for scheme in schemes.values():
        weights = scheme.get("weights") if isinstance(scheme, dict) else None
        found.append(weights.get("block_structure") if isinstance(weights, dict) else None)
    blocks = {repr(each): each for each in found if each is not None}
    for block in blocks.values():
        if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
            raise SourceError(f"{where}: its FP8 blocks are {block!r}, not two positive numbers")
    if len(blocks) > 1:
        raise SourceError(f"{where}: its FP8 weights have blocks of several sizes: {', '.join(sorted(blocks))}")
    return next((tuple(block) for block in blocks.values()), None)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A matrix or a stack of matrices, checked against its scales."""

    codes: StoredIn
    scales: StoredIn
    """The scales as one matrix; those of a stack's matrices are concatenated."""
    stacked: bool
    """Whether each matrix of a stack has its own scales."""
    block: tuple[int, int]
    """The rows and inputs that share a scale."""

    def opened(self) -> SourceTensor:
        return SourceTensor(self.codes.name, self.codes.tensor.shape, "fp8", 0, self._read, label="FP8")

    def _read(self, begin: int, end: int) -> F32:
        *_, rows, cols = self.codes.tensor.shape
        values = e4m3_to_fp32(row_reader(self.codes.path, self.codes.tensor.offset, cols)(begin, end))
        matrix, row = np.divmod(np.arange(begin, end), rows)
        wanted = row // self.block[0] + (matrix * -(-rows // self.block[0]) if self.stacked else 0)
        first, last = int(wanted.min()), int(wanted.max())
        scales = self.scales.block((first, last + 1), (0, self.scales.tensor.shape[1]))[wanted - first]
        values *= np.repeat(scales, self.block[1], axis=1)[:, :cols]
        return values


def _checked(codes: StoredIn, scales: StoredIn, block: tuple[int, int] | None) -> _Weight:
    shape, of_scales = codes.tensor.shape, scales.tensor.shape
    if len(shape) not in (2, 3) or 0 in shape:
        raise codes.refuse(f"has the shape {shape}, neither a matrix nor a stack of matrices")
    if scales.tensor.dtype not in ("F32", "F16", "BF16"):
        raise scales.refuse(f"is {scales.tensor.dtype}, not F32, F16 or BF16")
    rows, cols = shape[-2:]
    stacked = len(of_scales) == len(shape) == 3
    counts = (1, 1) if of_scales in ((), (1,)) else of_scales[1:] if stacked else of_scales
    height, width = (rows, cols) if counts == (1, 1) else block or (1, cols)
    is_of_all = counts == (-(-rows // height), -(-cols // width)) and (counts == (1, 1) or len(of_scales) == len(shape))
    if not is_of_all or (stacked and of_scales[0] != shape[0]):
        parts = "rows" if block is None else f"blocks of {block[0]} by {block[1]}"
        raise scales.refuse(f"has the shape {of_scales}; scales of {shape} are for whole matrices or for {parts}")
    matrices = of_scales[0] if stacked else 1
    flat = replace(scales, tensor=replace(scales.tensor, shape=(matrices * counts[0], counts[1])))
    return _Weight(codes, flat, stacked, (min(height, rows), min(width, cols)))
