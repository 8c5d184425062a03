"""Reads gpt-oss' MXFP4 experts: codes in `NAME_blocks`, two per byte, and exponents in `NAME_scales`.

A pair is one stack of matrices, under the name of its codes. Knows no family.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from quant.codes.matrix import U8, QuantizedMatrix
from quant.codes.mxfp4 import GROUP, TABLE, mxfp4_matrix
from quant.sources.file_rows import row_reader
from quant.sources.packed_layers import StoredIn
from quant.sources.source import SourceTensor

CODES: Final = "_blocks"
EXPONENTS: Final = "_scales"
_BYTES: Final = GROUP // 2


def is_mxfp4(quantization: Any) -> bool:
    """Whether a `quantization_config` says that experts are MXFP4."""
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def mxfp4_stacks(stored: Mapping[str, StoredIn]) -> dict[str, SourceTensor]:
    """The stacks by the names of their codes. Raises SourceError where codes and exponents don't fit together."""
    return {name: _stack(name, codes, stored) for name, codes in stored.items() if name.endswith(CODES)}


def _stack(name: str, codes: StoredIn, stored: Mapping[str, StoredIn]) -> SourceTensor:
    """[experts, rows, groups, 16] bytes and [experts, rows, groups] exponents -> [experts, rows, inputs]."""
    exponents = stored.get(name.removesuffix(CODES) + EXPONENTS)
    if exponents is None:
        raise codes.refuse(f"has no exponents beside it ({EXPONENTS})")
    shape = codes.tensor.shape
    if codes.tensor.dtype != "U8" or len(shape) != 4 or shape[3] != _BYTES or 0 in shape:
        raise codes.refuse(f"is {codes.tensor.dtype} {shape}, not U8 [experts, rows, groups, {_BYTES}]")
    if exponents.tensor.dtype != "U8" or exponents.tensor.shape != shape[:3]:
        raise exponents.refuse(f"is {exponents.tensor.dtype} {exponents.tensor.shape}, not U8 {shape[:3]}")
    groups = shape[2]
    read_codes = row_reader(codes.path, codes.tensor.offset, groups * _BYTES)
    read_exponents = row_reader(exponents.path, exponents.tensor.offset, groups)

    def read(begin: int, end: int) -> QuantizedMatrix:
        return mxfp4_matrix(name, _nibbles(read_codes(begin, end)), read_exponents(begin, end))

    return SourceTensor(name, (shape[0], shape[1], groups * GROUP), "lut4", GROUP, read, table=TABLE, label="MXFP4")


def _nibbles(packed: U8) -> U8:
    """Unpacks two codes per byte, the low half first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(len(packed), -1)
