"""A checkpoint -> a packed model: plans every tensor's type, then quantizes and writes piece by piece.

A piece is some rows, so memory stays at a few megabytes whatever the size of the model; the largest things
held are the norms. Does not know file formats (`sources`), formulas (`int4`, `int8`) or the layout
(`packed_file`).
"""

import hashlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import numpy as np

from quant.atomic_folder import atomic_folder
from quant.errors import OutputError, QuantError, SourceError, TensorError
from quant.int4 import quantize_asym_int4, quantize_sym_int4
from quant.int8 import quantize_int8
from quant.json_file import write_json
from quant.lut4 import NF4, quantize_lut4
from quant.matrix import F32, GROUP_SIZES, U8, QuantizedMatrix, WeightType, check_group
from quant.model_config import ExpectedTensor, expected_tensors
from quant.packed_file import FILE_NAME, FORMAT, MatrixInfo, PackedPlan, dequantize, pack_float, pack_quantized
from quant.piecewise import write_packed
from quant.requantized import requantization_notes
from quant.sources import open_source
from quant.sources.safetensors_file import read_header
from quant.sources.source import Source, SourceTensor

MATRIX_QTYPES: Final = ("sym_int4", "asym_int4", "nf4", "int8", "bf16", "fp32")
QTYPES: Final = ("auto", *MATRIX_QTYPES)
DEFAULT_GROUP_SIZE: Final = 64
# Large enough that NumPy's cost per call vanishes, small enough to stay near the cores' caches: 4 MiB of
# fp32.
_PIECE_VALUES: Final = 1 << 20
_SPARE_BYTES: Final = 64 << 20  # what the tokenizer and the file system itself may need


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion made. `notes`: what the user should know, one sentence each."""

    folder: Path
    qtype: str
    group_size: int
    matrices: int
    size_bytes: int
    seconds: float
    notes: tuple[str, ...]


def convert(
    source: Path,
    out: Path,
    *,
    qtype: str = "auto",
    group_size: int | None = None,
    head_qtype: str | None = None,
    force: bool = False,
    progress: bool = True,
) -> ConversionReport:
    """Converts a checkpoint (a Hugging Face folder or a GGUF file) into the packed model folder `out`.

    qtype: "auto" keeps a GGUF's own 4 and 8 bit codes as they are (Q4_0, Q4_1, Q8_0; their group is 32) and makes
    sym_int4 of everything else; any other type requantizes, except matrices that have that type and group already.

    group_size: 32, 64 or 128 inputs a scale, 64 by default; 32 in any case beside codes that are kept.

    head_qtype: the type of the output head, and so of the embedding where the two are tied.

    Beside 4-bit layers an embedding (tied or not) is int8 with the same group: looking rows up costs nothing, and a
    tied head is the layer that quantization hurts most. That costs half a byte a weight: 0.5 GB for a vocabulary of
    128k and a width of 8k, 14 MB for the embedded model. An untied head has the layers' type.

    The folder appears whole or not at all. An existing one is an error without `force`; `force` replaces only
    a converted model. progress: a bar on the standard error.

    Raises:
        QuantError: see quant.errors; every message names the file, the tensor or the option.
    """
    started = time.monotonic()
    check_options(qtype, group_size, head_qtype)
    checkpoint = open_source(source)
    expected = expected_tensors(checkpoint.config)
    _check_tensors(checkpoint, expected, source)
    infos = _plan_matrices(checkpoint, expected, qtype, group_size, head_qtype)
    dominant = _dominant([infos[name] for name, tensor in expected.items() if tensor.role == "linear"])
    with atomic_folder(out, force=force, replaceable=is_packed_model) as folder:
        plan = PackedPlan(
            matrices=infos,
            vectors={name: tensor.shape[0] for name, tensor in expected.items() if tensor.role == "vector"},
            qtype=dominant.type,
            group_size=dominant.group,
            source=f"{checkpoint.name} sha256:{fingerprint(checkpoint.files)}",
        )
        check_free_space(out, plan.size_bytes())
        checkpoint.write_tokenizer(folder)
        write_json(folder / "config.json", checkpoint.config)
        write_packed(
            folder / FILE_NAME,
            plan,
            lambda name, info, begin, end: _packed_piece(checkpoint.tensors[name], info, begin, end),
            lambda name: _vector(checkpoint.tensors[name]),
            label="Converting",
            progress=progress,
        )
    return ConversionReport(
        folder=out,
        qtype=dominant.type,
        group_size=dominant.group,
        matrices=len(infos),
        size_bytes=plan.size_bytes(),
        seconds=time.monotonic() - started,
        notes=(*checkpoint.notes, *_loss_notes(checkpoint, infos, out / FILE_NAME)),
    )


def is_packed_model(folder: Path) -> bool:
    """Whether a folder is a converted model, and so may be replaced."""
    try:
        return read_header(folder / FILE_NAME)[1].get("format") == FORMAT
    except SourceError:
        return False


def fingerprint(files: Iterable[Path]) -> str:
    """SHA-256 over the files' own SHA-256 digests, in order, in hex."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def check_free_space(out: Path, needed_bytes: int) -> None:
    """Raises OutputError if the disk of `out` has too little room."""
    place = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed_bytes + _SPARE_BYTES:
        raise OutputError(f"{out}: needs {needed_bytes / 1e9:.2f} GB of disk, {free / 1e9:.2f} GB are free")


def check_options(qtype: str, group_size: int | None, head_qtype: str | None) -> None:
    """Raises QuantError, naming the option, for a type or a group that there is not."""
    if qtype not in QTYPES:
        raise QuantError(f"qtype {qtype!r} is not one of {', '.join(QTYPES)}")
    if head_qtype is not None and head_qtype not in MATRIX_QTYPES:
        raise QuantError(f"head_qtype {head_qtype!r} is not one of {', '.join(MATRIX_QTYPES)}")
    if group_size is not None and group_size not in GROUP_SIZES:
        raise QuantError(f"group size {group_size} is not one of {', '.join(map(str, GROUP_SIZES))}")


def _check_tensors(checkpoint: Source, expected: Mapping[str, ExpectedTensor], path: Path) -> None:
    for name, tensor in expected.items():
        stored = checkpoint.tensors.get(name)
        if stored is None:
            raise SourceError(f"{path}: lacks the tensor {name!r}")
        if stored.shape != tensor.shape:
            raise TensorError(name, f"has the shape {stored.shape}, the configuration says {tensor.shape}")
    for name in checkpoint.tensors:
        if name not in expected:
            raise SourceError(f"{path}: has the tensor {name!r}, which a model of this configuration does not use")


def _dominant(infos: list[MatrixInfo]) -> MatrixInfo:
    kinds = [(info.type, info.group) for info in infos]
    return infos[kinds.index(max(set(kinds), key=kinds.count))]


def _plan_matrices(
    checkpoint: Source,
    expected: Mapping[str, ExpectedTensor],
    qtype: str,
    group_size: int | None,
    head_qtype: str | None,
) -> dict[str, MatrixInfo]:
    """Every matrix' type and group."""
    keep = qtype == "auto"
    kept_group = max((checkpoint.tensors[name].group for name in expected), default=0) if keep else 0
    group = kept_group or group_size or DEFAULT_GROUP_SIZE
    tied = checkpoint.config["tie_word_embeddings"]
    infos = {}
    for name, tensor in expected.items():
        stored = checkpoint.tensors[name]
        if tensor.role == "vector":
            continue
        if keep and stored.group and (head_qtype is None or not is_head(tensor, tied)):
            kept = matrix_info(name, cast("WeightType", stored.stored), tensor.shape, stored.group)
            infos[name] = replace(kept, table=stored.table)
            continue
        fresh = "int8" if stored.stored == "other_fine" else "sym_int4"
        infos[name] = matrix_info(
            name, default_type(tensor, tied, fresh if keep else qtype, head_qtype), tensor.shape, group
        )
    return infos


def is_head(tensor: ExpectedTensor, tied: bool) -> bool:
    """Whether a tensor makes the logits: the head, or an embedding that is tied to it."""
    return tensor.role == "head" or (tensor.role == "embedding" and tied)


def default_type(tensor: ExpectedTensor, tied: bool, qtype: str, head_qtype: str | None) -> WeightType:
    """The type of a matrix in a model of `qtype` (see `convert`)."""
    if is_head(tensor, tied) and head_qtype is not None:
        return weight_type(head_qtype)
    if tensor.role == "embedding" and qtype in ("sym_int4", "asym_int4", "nf4"):
        return "int8"
    return weight_type(qtype)


def weight_type(qtype: str) -> WeightType:
    """How the matrices of one of MATRIX_QTYPES are stored: "nf4" is "lut4" with that table."""
    return "lut4" if qtype == "nf4" else cast("WeightType", qtype)


def matrix_info(name: str, kind: WeightType, shape: tuple[int, ...], group: int) -> MatrixInfo:
    """The matrix as `__metadata__` describes it. Raises TensorError where the type can't hold the shape."""
    rows, cols = shape
    if kind in ("bf16", "fp32"):
        if kind == "bf16" and cols % 2:
            raise TensorError(name, f"last dimension {cols} is odd; bf16 takes pairs: use fp32")
        return MatrixInfo(kind, rows, cols, 0)
    check_group(name, cols, group)
    return MatrixInfo(kind, rows, cols, group, NF4 if kind == "lut4" else None)


def _vector(tensor: SourceTensor) -> F32:
    values = tensor.read(0, tensor.shape[0])
    if isinstance(values, QuantizedMatrix) or not np.isfinite(values).all():
        raise TensorError(tensor.name, "is quantized, or holds NaN or infinite values")
    return values


def _packed_piece(tensor: SourceTensor, info: MatrixInfo, begin: int, end: int) -> U8:
    values = tensor.read(begin, end)
    if isinstance(values, QuantizedMatrix):
        if (values.type, values.group, values.table) == (info.type, info.group, info.table):
            _check_codes(tensor.name, values)
            return pack_quantized(values)
        values = dequantize(values)
    if info.type == "sym_int4":
        return pack_quantized(quantize_sym_int4(tensor.name, values, info.group))
    if info.type == "asym_int4":
        return pack_quantized(quantize_asym_int4(tensor.name, values, info.group))
    if info.type == "lut4":
        return pack_quantized(quantize_lut4(tensor.name, values, info.group))
    if info.type == "int8":
        return pack_quantized(quantize_int8(tensor.name, values, info.group))
    if not np.isfinite(values).all():
        raise TensorError(tensor.name, "holds NaN or infinite values")
    return pack_float(values, info.type)


def _check_codes(name: str, matrix: QuantizedMatrix) -> None:
    if not np.isfinite(matrix.scales).all() or (matrix.minima is not None and not np.isfinite(matrix.minima).all()):
        raise TensorError(name, "holds NaN or infinite scales")
    if matrix.type == "int8" and not matrix.codes.all():
        raise TensorError(name, "holds the code -128, which Q8_0 does not use")


def _loss_notes(checkpoint: Source, infos: Mapping[str, MatrixInfo], packed: Path) -> Iterator[str]:
    """What was rounded in a way that the user may not expect."""
    pairs = [(checkpoint.tensors[name], info) for name, info in infos.items()]
    if any(
        source.group and info.group and (source.stored, source.group) != (info.type, info.group)
        for source, info in pairs
    ):
        yield "The source's own codes were requantized, which loses quality; qtype auto keeps them."
    yield from requantization_notes(checkpoint, packed)
    if any(info.type == "bf16" and source.stored != "bf16" for source, info in pairs):
        yield "Weights were rounded to bf16's short mantissa; fp32 keeps them as they are."
