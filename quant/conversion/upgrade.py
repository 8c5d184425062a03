"""Rewrites a packed model of an older layout: its header gets the description, its weights are copied byte for byte.

Layout 1 had no description: the engine knew the families, and read config.json. Knows no number format.
"""

import json
import shutil
from pathlib import Path
from typing import IO, Any, Final

from quant.errors import SourceError
from quant.families.description import Decoder
from quant.families.names import engine_tensors
from quant.families.registry import describe, family_of, standard_config
from quant.files.atomic_folder import atomic_folder
from quant.files.free_space import check_free_space
from quant.files.json_file import read_json_object, write_json
from quant.files.safetensors_file import StoredTensor, read_header
from quant.packed.packed_file import ALIGNMENT_BYTES, FILE_NAME, FORMAT, LAYOUT_VERSION, PackedFile, is_packed_model

_OLD_LAYOUT: Final = "1"
_COPY_BYTES: Final = 8 << 20


def is_old_layout(folder: Path) -> bool:
    """Whether `upgrade` can read a folder's packed model."""
    try:
        metadata = read_header(folder / FILE_NAME)[1]
    except SourceError:
        return False
    return metadata.get("format") == FORMAT and metadata.get("layout_version") == _OLD_LAYOUT


def upgrade(old: Path, out: Path, *, force: bool = False) -> PackedFile:
    """Writes the packed model `old`, which must be `is_old_layout`, in today's layout; out may be the same folder.

    The folder appears whole or not at all. Raises QuantError.
    """
    source, raw_config = old / FILE_NAME, read_json_object(old / "config.json")
    where = str(old / "config.json")
    decoder, family = describe(raw_config, where), family_of(raw_config, where)
    stored, metadata = read_header(source)
    _check(source, decoder, stored, metadata)
    with atomic_folder(out, force=force, replaceable=is_packed_model) as folder:
        check_free_space(out, source.stat().st_size)
        for path in sorted(old.iterdir()):
            if path.is_file() and path.name not in (FILE_NAME, "config.json"):
                shutil.copyfile(path, folder / path.name)
        write_json(folder / "config.json", standard_config(raw_config, decoder, family))
        with source.open("rb") as read, (folder / FILE_NAME).open("xb") as write:
            _rewrite_header(read, write, decoder)
            shutil.copyfileobj(read, write, _COPY_BYTES)
        PackedFile(folder / FILE_NAME)
    return PackedFile(out / FILE_NAME)


def _check(path: Path, decoder: Decoder, stored: dict[str, StoredTensor], metadata: dict[str, str]) -> None:
    try:
        matrices = json.loads(metadata["matrices"])
        shapes: dict[str, tuple[int, ...]] = {name: (entry["rows"], entry["cols"]) for name, entry in matrices.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SourceError(f"{path}: its 'matrices' metadata is damaged: {error}") from error
    shapes |= {name: tensor.shape for name, tensor in stored.items() if tensor.dtype == "F32"}
    expected = {name: tensor.shape for name, tensor in engine_tensors(decoder).items()}
    for name in (*expected, *shapes):
        if shapes.get(name) != expected.get(name):
            raise SourceError(
                f"{path}: tensor {name!r} has the shape {shapes.get(name)}, config.json says {expected.get(name)}"
            )


def _rewrite_header(read: IO[bytes], write: IO[bytes], decoder: Decoder) -> None:
    """Rewrites the header and leaves both files where the tensors begin."""
    header: dict[str, Any] = json.loads(read.read(int.from_bytes(read.read(8), "little")))
    header["__metadata__"] |= {
        "layout_version": LAYOUT_VERSION,
        "decoder": json.dumps(decoder.to_dict(), separators=(",", ":")),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    write.write(len(text).to_bytes(8, "little") + text)
