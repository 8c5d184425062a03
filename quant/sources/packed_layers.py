"""Reads linear layers that GPTQ, AWQ or compressed-tensors quantized to four bits, with their own codes.

Each layout has codes 0..15, and for each group a scale and a zero point: w = scale * (code - zero). Where a group's
inputs are adjacent, the codes are those of our sym_int4 (all zero points 8) or asym_int4, with the scale in fp16 and
the minimum -scale * zero rounded to fp16. Where they are not (GPTQ's act-order), fp32 values are read.

Sources: AutoGPTQ's qlinear_cuda_old.py and gptqmodel's (zero points one less in the v1 format), AutoAWQ's
packing_utils.py (the order of a word's eight outputs), compressed-tensors' pack_quantized.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from quant.codes.bf16 import bf16_to_fp32
from quant.codes.matrix import F32, GROUP_SIZES, U8, QuantizedMatrix
from quant.errors import SourceError, UnsupportedModelError
from quant.files.safetensors_file import StoredTensor
from quant.sources.file_rows import read_block
from quant.sources.source import SourceTensor

I64 = NDArray[np.int64]
LayerFormat = Literal["gptq", "gptq_v2", "awq", "compressed-tensors"]

PACKED_SUFFIXES: Final[Mapping[LayerFormat, str]] = {
    "gptq": ".qweight", "gptq_v2": ".qweight", "awq": ".qweight", "compressed-tensors": ".weight_packed",
}  # fmt: skip
"""The suffix of the tensor with a layer's codes, after the layer's name."""
COMPANION_SUFFIXES: Final = (
    ".qweight", ".qzeros", ".scales", ".g_idx",
    ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx",
)  # fmt: skip
_LABELS: Final[Mapping[LayerFormat, str]] = {
    "gptq": "GPTQ", "gptq_v2": "GPTQ", "awq": "AWQ", "compressed-tensors": "compressed-tensors int4",
}  # fmt: skip
_WORD: Final = 8  # codes in an int32
_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)  # the positions of a word's eight outputs


@dataclass(frozen=True, slots=True)
class StoredIn:
    """A tensor and the file that holds it."""

    path: Path
    name: str
    tensor: StoredTensor

    def refuse(self, reason: str) -> SourceError:
        """An error that names the file and the tensor."""
        return SourceError(f"{self.path}: tensor {self.name!r} {reason}")

    def block(self, rows: tuple[int, int], cols: tuple[int, int]) -> NDArray[Any]:
        """Part [rows, cols] of a matrix: uint32 words, or fp32 of any float type."""
        width = 4 if self.tensor.dtype in ("I32", "F32") else 2
        offset = self.tensor.offset + rows[0] * self.tensor.shape[1] * width
        row_bytes = self.tensor.shape[1] * width
        raw = read_block(self.path, offset, rows[1] - rows[0], row_bytes, cols[0] * width, cols[1] * width)
        if self.tensor.dtype == "I32":
            return raw.view(np.uint32)
        if self.tensor.dtype == "BF16":
            return bf16_to_fp32(raw.view(np.uint16))
        return raw.view(np.float32 if width == 4 else np.float16).astype(np.float32)

    def vector(self) -> I64:
        """Reads a whole vector of integers."""
        raw = read_block(self.path, self.tensor.offset, 1, self.tensor.size_bytes, 0, self.tensor.size_bytes)
        return raw.reshape(-1).view(np.int32 if self.tensor.dtype == "I32" else np.int64).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One layer's tensors, checked against each other."""

    format: LayerFormat
    codes: StoredIn
    scales: StoredIn
    zeros: StoredIn | None
    """None for symmetric codes."""
    group_of_input: I64
    """[cols]: the group of each input."""

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        first, second = self.codes.tensor.shape
        if self.format == "awq":
            return second * _WORD, first
        return (first, second * _WORD) if self.format == "compressed-tensors" else (second, first * _WORD)

    def codes_of(self, begin: int, end: int) -> U8:
        """Codes 0..15 of outputs [begin, end): [end - begin, inputs]."""
        first, second = self.codes.tensor.shape
        if self.format == "compressed-tensors":
            return _unpacked(self.codes.block((begin, end), (0, second))).reshape(end - begin, -1)
        if self.format == "awq":
            return _awq_outputs(self.codes, begin, end)
        words = self.codes.block((0, first), (begin, end))  # [inputs / 8, outputs]
        return np.ascontiguousarray(_unpacked(words).transpose(1, 0, 2).reshape(end - begin, -1))

    def scales_of(self, begin: int, end: int) -> F32:
        """Scales of outputs [begin, end): [end - begin, groups]."""
        first, second = self.scales.tensor.shape
        if self.format == "compressed-tensors":
            return self.scales.block((begin, end), (0, second))
        return self.scales.block((0, first), (begin, end)).T

    def zeros_of(self, begin: int, end: int) -> NDArray[np.int32]:
        """Zero points of outputs [begin, end): [end - begin, groups], 0..16."""
        if self.zeros is None:
            return np.full((end - begin, self.scales_of(begin, begin + 1).shape[1]), 8, np.int32)
        first, second = self.zeros.tensor.shape
        if self.format == "awq":
            return _awq_outputs(self.zeros, begin, end).astype(np.int32)
        words = (begin // _WORD, -(-end // _WORD))
        if self.format == "compressed-tensors":  # eight outputs lie in a word: [outputs / 8, groups]
            zeros = _unpacked(self.zeros.block(words, (0, second))).transpose(0, 2, 1).reshape(-1, second)
        else:  # [groups, outputs / 8]
            zeros = _unpacked(self.zeros.block((0, first), words)).reshape(first, -1).T
        skipped = words[0] * _WORD
        return zeros[begin - skipped : end - skipped].astype(np.int32) + int(self.format == "gptq")


def _unpacked(words: NDArray[np.uint32]) -> U8:
    """[a, b] words -> [a, b, 8] codes, the lowest bits first."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return ((words[..., None] >> shifts) & np.uint32(15)).astype(np.uint8)


def _awq_outputs(stored: StoredIn, begin: int, end: int) -> U8:
    words = (begin // _WORD, -(-end // _WORD))
    codes = _unpacked(stored.block((0, stored.tensor.shape[0]), words))[..., _AWQ_ORDER]
    skipped = words[0] * _WORD
    return np.ascontiguousarray(codes.reshape(len(codes), -1).T[begin - skipped : end - skipped])


def open_layer(layer: str, kind: LayerFormat, stored: Mapping[str, StoredIn], group_size: int) -> SourceTensor:
    """The layer's weight as a source tensor. stored: all tensors by name; group_size: -1 for one group per row.

    Raises SourceError naming file, tensor and reason.
    """
    packed = _checked(layer, kind, stored, group_size)
    rows, cols = packed.shape
    fitting = [size for size in sorted(GROUP_SIZES, reverse=True) if _together(packed.group_of_input, cols, size)]
    symmetric = packed.zeros is None or bool((packed.zeros_of(0, rows) == 8).all())

    def read_codes(begin: int, end: int) -> QuantizedMatrix:
        of_group = packed.group_of_input[:: fitting[0]]
        scales = np.ascontiguousarray(packed.scales_of(begin, end)[:, of_group])
        with np.errstate(over="ignore"):  # the conversion refuses an infinite scale
            halves = scales.astype(np.float16)
            if symmetric:
                return QuantizedMatrix("sym_int4", fitting[0], packed.codes_of(begin, end), halves)
            minima = (-scales * packed.zeros_of(begin, end)[:, of_group].astype(np.float32)).astype(np.float16)
        return QuantizedMatrix("asym_int4", fitting[0], packed.codes_of(begin, end), halves, minima)

    def read_values(begin: int, end: int) -> F32:
        steps = packed.codes_of(begin, end) - packed.zeros_of(begin, end)[:, packed.group_of_input]
        return steps.astype(np.float32) * packed.scales_of(begin, end)[:, packed.group_of_input]

    name, label = f"{layer}.weight", _LABELS[kind]
    if not fitting:
        return SourceTensor(
            name, (rows, cols), "other", 0, read_values, label=f"{label} with groups of scattered inputs"
        )
    exact = symmetric and packed.scales.tensor.dtype == "F16"
    codes = "sym_int4" if symmetric else "asym_int4"
    return SourceTensor(
        name, (rows, cols), "sym_int4" if codes == "sym_int4" else "asym_int4", fitting[0], read_codes,
        label=label, rounded_scales=not exact,
    )  # fmt: skip


def _together(group_of_input: I64, cols: int, size: int) -> bool:
    """Whether each run of `size` inputs belongs to one group."""
    if cols % size:
        return False
    runs = group_of_input.reshape(-1, size)
    return bool((runs == runs[:, :1]).all())


def _checked(layer: str, kind: LayerFormat, stored: Mapping[str, StoredIn], group_size: int) -> PackedLayer:
    suffix = PACKED_SUFFIXES[kind]
    compressed = kind == "compressed-tensors"
    codes = stored[f"{layer}{suffix}"]
    _need(codes, ("I32",), 2)
    scales = _companion(layer, ".weight_scale" if compressed else ".scales", stored, codes)
    _need(scales, ("F16", "BF16", "F32"), 2)
    zeros_name = f"{layer}{'.weight_zero_point' if compressed else '.qzeros'}"
    zeros = stored.get(zeros_name) if compressed else _companion(layer, ".qzeros", stored, codes)
    index = stored.get(f"{layer}{'.weight_g_idx' if compressed else '.g_idx'}")
    packed = PackedLayer(kind, codes, scales, zeros, np.zeros(0, np.int64))
    rows, cols = packed.shape
    groups = scales.tensor.shape[1 if compressed else 0]
    if scales.tensor.shape != ((rows, groups) if compressed else (groups, rows)):
        raise scales.refuse(f"has the shape {scales.tensor.shape}, which does not fit {codes.tensor.shape}")
    if zeros is not None:
        _need(zeros, ("I32",), 2)
        words = -(-rows // _WORD)
        if zeros.tensor.shape != ((words, groups) if compressed else (groups, words)):
            raise zeros.refuse(f"has the shape {zeros.tensor.shape}, which does not fit {scales.tensor.shape}")
    group_of_input = _group_of_input(index, codes, cols, groups, group_size)
    return PackedLayer(kind, codes, scales, zeros, group_of_input)


def _group_of_input(index: StoredIn | None, codes: StoredIn, cols: int, groups: int, group_size: int) -> I64:
    if index is not None:
        _need(index, ("I32", "I64"), 1)
        group_of_input = index.vector()
        if group_of_input.shape != (cols,) or group_of_input.min() < 0 or group_of_input.max() >= groups:
            raise index.refuse(f"does not say for {cols} inputs which of {groups} groups is theirs")
        return group_of_input
    width = cols if group_size == -1 else group_size
    if -(-cols // width) != groups:
        raise codes.refuse(f"has {groups} groups; {cols} inputs in groups of {width} make {-(-cols // width)}")
    return np.arange(cols, dtype=np.int64) // width


def _companion(layer: str, suffix: str, stored: Mapping[str, StoredIn], codes: StoredIn) -> StoredIn:
    found = stored.get(f"{layer}{suffix}")
    if found is None:
        raise codes.refuse(f"has no {layer}{suffix} beside it")
    return found


def _need(stored: StoredIn, dtypes: tuple[str, ...], dimensions: int) -> None:
    tensor = stored.tensor
    if tensor.dtype not in dtypes or len(tensor.shape) != dimensions or 0 in tensor.shape:
        raise stored.refuse(f"is {tensor.dtype} {tensor.shape}, not {dimensions}-dimensional {' or '.join(dtypes)}")


def layer_format(quantization: Mapping[str, Any], where: str) -> tuple[LayerFormat, int] | None:
    """The layout and group size of a `quantization_config`; None for methods that are not supported.

    Raises UnsupportedModelError for an unsupported variant of a supported method.
    """
    method = quantization.get("quant_method")
    if method in ("gptq", "awq"):
        _only(quantization, "bits", (4,), where, method)
        group_size = quantization.get("group_size", 128)
        if method == "awq":
            _only(quantization, "version", ("gemm", "GEMM"), where, method)
            return "awq", _group_size(group_size, where)
        _only(quantization, "checkpoint_format", ("gptq", "gptq_v2"), where, method)
        v2 = quantization.get("checkpoint_format") == "gptq_v2"
        return ("gptq_v2" if v2 else "gptq"), _group_size(group_size, where)
    if method != "compressed-tensors":
        return None
    _only(quantization, "format", ("pack-quantized",), where, method)
    schemes = quantization.get("config_groups")
    if not isinstance(schemes, dict) or not schemes:
        raise SourceError(f"{where}: its compressed-tensors configuration has no config_groups")
    sizes = set()
    for scheme in schemes.values():
        weights = scheme.get("weights") if isinstance(scheme, dict) else None
        if not isinstance(weights, dict):
            raise SourceError(f"{where}: a scheme of its config_groups has no weights")
        _only(weights, "num_bits", (4,), where, method)
        _only(weights, "type", ("int",), where, method)
        _only(weights, "strategy", ("group", "channel"), where, method)
        sizes.add(_group_size(weights.get("group_size") or -1, where))
    if len(sizes) > 1:
        raise UnsupportedModelError(f"{where}: its config_groups have different group sizes, which is not supported")
    return "compressed-tensors", sizes.pop()


def _only(options: Mapping[str, Any], key: str, supported: tuple[object, ...], where: str, method: str) -> None:
    value = options.get(key, supported[0])
    if value not in supported:
        known = " or ".join(map(str, dict.fromkeys(supported)))
        raise UnsupportedModelError(f"{where}: {method} with {key} {value!r} is not supported; supported: {known}")


def _group_size(value: object, where: str) -> int:
    if type(value) is not int or (value < 1 and value != -1):
        raise SourceError(f"{where}: group_size {value!r} is neither a positive number nor -1")
    return value
