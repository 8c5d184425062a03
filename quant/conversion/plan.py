"""Plans the type and group of every matrix of a checkpoint.

Does not know how codes are chosen, nor the packed file beyond a matrix' header entry.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from quant.codes.lut4 import TABLES
from quant.codes.matrix import FLOAT_TYPES, GROUP_SIZES, WeightType, check_group
from quant.errors import QuantError, TensorError
from quant.families.names import EngineTensor
from quant.methods.granularity import storage_group
from quant.packed.packed_matrix import MatrixInfo
from quant.sources.source import Source, StoredType

MATRIX_QTYPES: Final = ("sym_int4", "asym_int4", "nf4", "lut4", "int8", *FLOAT_TYPES)
QTYPES: Final = ("auto", *MATRIX_QTYPES)
FOUR_BIT_QTYPES: Final = ("sym_int4", "asym_int4", *TABLES)
DEFAULT_GROUP_SIZE: Final = 64


def check_options(qtype: str, group_size: int | None, head_qtype: str | None) -> None:
    """Raises QuantError, naming the option, for an unknown type or group size."""
    if qtype not in QTYPES:
        raise QuantError(f"qtype {qtype!r} is not one of {', '.join(QTYPES)}")
    if head_qtype is not None and head_qtype not in MATRIX_QTYPES:
        raise QuantError(f"head_qtype {head_qtype!r} is not one of {', '.join(MATRIX_QTYPES)}")
    if group_size is not None and group_size not in GROUP_SIZES:
        raise QuantError(f"group size {group_size} is not one of {', '.join(map(str, GROUP_SIZES))}")


def dominant(infos: list[MatrixInfo]) -> MatrixInfo:
    """A matrix with the most frequent type and group."""
    kinds = [(info.type, info.group) for info in infos]
    return infos[kinds.index(max(set(kinds), key=kinds.count))]


def plan_matrices(
    checkpoint: Source,
    expected: Mapping[str, EngineTensor],
    qtype: str,
    group_size: int | None,
    head_qtype: str | None,
    fresh: str = "sym_int4",
) -> dict[str, MatrixInfo]:
    """The type and group of every matrix, by name; see `convert` for the options.

    fresh: the type that "auto" gives to matrices without codes of at most 4.5 bits.
    """
    keep = qtype == "auto"
    kept_group = max((checkpoint.tensors[name].group for name in expected), default=0) if keep else 0
    group = kept_group or group_size or DEFAULT_GROUP_SIZE
    if checkpoint.decoder.encoder is not None:
        fresh = "int8"
        group = kept_group or group_size or largest_group(expected)
    tied = checkpoint.decoder.tied_head
    infos = {}
    for name, tensor in expected.items():
        stored = checkpoint.tensors[name]
        if tensor.role == "vector":
            continue
        if keep and stored.group and tensor.role != "router" and (head_qtype is None or not is_head(tensor, tied)):
            kept = matrix_info(name, stored.stored, tensor, stored.group)
            infos[name] = replace(kept, table=stored.table)
            continue
        chosen = "int8" if stored.stored == "other_fine" else fresh
        kind = default_type(tensor, tied, chosen if keep else qtype, head_qtype, stored=stored.stored)
        infos[name] = matrix_info(name, kind, tensor, group)
    return infos


def largest_group(expected: Mapping[str, EngineTensor]) -> int:
    """The largest group that divides every matrix' columns.

    Groups cost an encoder time, whose products are of many rows, and its int8 codes lose nothing by them.
    """
    cols = [tensor.shape[1] for tensor in expected.values() if tensor.role != "vector"]
    return next((size for size in sorted(GROUP_SIZES, reverse=True) if not any(each % size for each in cols)), 32)


def calibrated_type(tier: str) -> str:
    """The type that "auto" gives to calibrated codes on a processor with this tier.

    lut4 is more accurate at the same size, but only with calibrated codes. Without VNNI its products take twice as long
    as sym_int4's (docs/quantization.md).
    """
    return "sym_int4" if tier in ("scalar", "avx2", "avx512") else "lut4"


def is_head(tensor: EngineTensor, tied: bool) -> bool:
    """Whether a tensor computes the logits: the head, or an embedding that is tied to it."""
    return tensor.role == "head" or (tensor.role == "embedding" and tied)


def default_type(
    tensor: EngineTensor, tied: bool, qtype: str, head_qtype: str | None, *, stored: StoredType = "bf16"
) -> str:
    """Which of MATRIX_QTYPES a matrix of a model of type `qtype` gets (see `convert`).

    stored: the source's type. A router stays floating point, because it decides the experts of a token.
    """
    if tensor.role == "router":
        return stored if stored == "fp16" or (stored == "bf16" and tensor.shape[1] % 2 == 0) else "fp32"
    if is_head(tensor, tied) and head_qtype is not None:
        return head_qtype
    if tensor.role in ("embedding", "table") and qtype in FOUR_BIT_QTYPES:
        return "int8"
    return qtype


def weight_type(qtype: str) -> WeightType:
    """The stored type for one of MATRIX_QTYPES: "nf4" and "lut4" differ only in their table."""
    return "lut4" if qtype in TABLES else cast("WeightType", qtype)


def matrix_info(name: str, qtype: str, tensor: EngineTensor, group: int) -> MatrixInfo:
    """Makes the matrix' entry of `__metadata__`. Raises TensorError if the type can't hold the shape."""
    rows, cols = tensor.shape
    kind = weight_type(qtype)
    if kind in FLOAT_TYPES:
        if kind == "bf16" and cols % 2:
            raise TensorError(name, f"last dimension {cols} is odd; bf16 takes pairs: use fp16 or fp32")
        return MatrixInfo(kind, rows, cols, 0, None, tensor.count)
    check_group(name, cols, group)
    return MatrixInfo(kind, rows, cols, group, TABLES.get(qtype), tensor.count)


def new_matrices(
    expected: Mapping[str, EngineTensor], tied_head: bool, qtype: str, group: int
) -> dict[str, MatrixInfo]:
    """Makes the entries of a model's matrices by the type that is asked for. Raises TensorError."""
    return {
        name: matrix_info(name, default_type(tensor, tied_head, qtype, None), tensor, group)
        for name, tensor in expected.items()
        if tensor.role != "vector"
    }


def coarsely_planned(infos: Mapping[str, MatrixInfo], expected: Mapping[str, EngineTensor]) -> dict[str, MatrixInfo]:
    """Changes the layers' matrices to the largest possible groups, because their scales will span several groups."""
    planned = dict(infos)
    for name, tensor in expected.items():
        if tensor.role == "linear":
            planned[name] = replace(infos[name], group=storage_group(name, infos[name].cols))
    return planned
