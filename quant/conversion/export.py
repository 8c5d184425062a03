"""Exports a packed model as a Hugging Face folder of plain floats that transformers loads: `redoubt export`.

Weights are dequantized some tiles at a time into one safetensors file. Does not know who reads it.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from quant.codes.bf16 import fp32_to_bf16
from quant.codes.matrix import F32
from quant.errors import QuantError, SourceError, UnsupportedModelError
from quant.families.registry import family_of
from quant.families.standard import same_names
from quant.files.atomic_folder import atomic_folder
from quant.files.free_space import check_free_space
from quant.files.json_file import read_json_object, write_json
from quant.files.safetensors_file import read_header
from quant.packed.packed_file import FILE_NAME, PackedFile, is_packed_model

EXPORT_TYPES: Final = ("bf16", "fp32")
_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_FORMAT: Final = "redoubt-export"
_PIECE_TILES: Final = 32


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export."""

    folder: Path
    tensors: int
    size_bytes: int


def export(model: Path, out: Path, *, dtype: str = "fp32", force: bool = False, progress: bool = True) -> ExportReport:
    """Writes the packed model as `dtype` ("fp32" exactly; "bf16" rounded to nearest even) into the folder `out`.

    The folder appears whole or not at all; `force` replaces an earlier export only. Raises QuantError.
    """
    if dtype not in EXPORT_TYPES:
        raise QuantError(f"dtype {dtype!r} is not one of {', '.join(EXPORT_TYPES)}")
    if not is_packed_model(model):
        raise SourceError(f"{model}: is not a converted model")
    packed = PackedFile(model / FILE_NAME)
    if packed.decoder.is_draft_head:
        raise UnsupportedModelError(f"{model}: is an EAGLE-3 head, no model; keep the original checkpoint")
    config = read_json_object(model / "config.json")
    family = family_of(config, str(model / "config.json"))
    if family.tensors is not same_names:
        raise UnsupportedModelError(
            f"{model}: {family.architecture} stores its tensors in another form than the engine, which export does not"
            " make again; keep the original checkpoint"
        )
    shapes: dict[str, tuple[int, ...]] = {name: (info.rows, info.cols) for name, info in packed.matrices.items()}
    vectors = {name: packed.vector(name) for name in packed.vectors}
    header = _header(shapes | {name: values.shape for name, values in vectors.items()}, dtype, packed)
    size = len(header) + sum((4 if dtype == "fp32" else 2) * int(np.prod(shape)) for shape in shapes.values())
    with atomic_folder(out, force=force, replaceable=_is_export) as folder:
        check_free_space(out, size)
        write_json(folder / "config.json", config | {"dtype": {"fp32": "float32", "bf16": "bfloat16"}[dtype]})
        for name in _FILES:
            if (model / name).exists():
                shutil.copyfile(model / name, folder / name)
        with (
            (folder / FILE_NAME).open("wb") as file,
            tqdm(total=size, unit="B", unit_scale=True, desc="Exporting", disable=not progress) as bar,
        ):
            file.write(header)
            for name in shapes:
                for values in _pieces(packed, name):
                    bar.update(file.write(_stored(values, dtype)))
            for values in vectors.values():
                bar.update(file.write(_stored(values, dtype)))
    return ExportReport(out, len(shapes) + len(vectors), size)


def _pieces(packed: PackedFile, name: str) -> Iterator[F32]:
    for first in range(0, packed.matrices[name].tiles, _PIECE_TILES):
        yield packed.dequantized_tiles(name, first, first + _PIECE_TILES)


def _stored(values: F32, dtype: str) -> bytes:
    if dtype == "fp32":
        return values.tobytes()
    return fp32_to_bf16(values).astype("<u2").tobytes()


def _header(shapes: dict[str, tuple[int, ...]], dtype: str, packed: PackedFile) -> bytes:
    kind, width = ("F32", 4) if dtype == "fp32" else ("BF16", 2)
    # transformers requires "format": "pt"; the other entries say where the weights came from.
    metadata = {
        "format": "pt",
        "made_by": _FORMAT,
        "source": packed.metadata["source"],
        "qtype": packed.metadata["qtype"],
    }
    header: dict[str, object] = {"__metadata__": metadata}
    position = 0
    for name, shape in shapes.items():
        size = width * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text


def _is_export(folder: Path) -> bool:
    try:
        return read_header(folder / FILE_NAME)[1].get("made_by") == _FORMAT
    except SourceError:
        return False
