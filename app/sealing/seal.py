"""Seals a converted model: writes all its files into one image, onto a block device or into a new file.

An unfinished image does not open, because its beginning is written last.
"""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm  # type: ignore[import-untyped]

from app.model_folder import missing_file
from app.sealing.image import CHUNK_BYTES, SALT_BYTES, ChunkCipher, FileEntry, Header, SealedModelError
from quant.files.free_space import check_free_space


@dataclass(frozen=True, slots=True)
class SealReport:
    name: str
    digest: str
    image_bytes: int
    on_device: bool


def seal(folder: Path, out: Path, key: bytes, *, name: str | None = None, progress: bool = True) -> SealReport:
    """Writes the image of a converted model.

    out: a block device, which is overwritten, or a new file.
    name: the model's name in the API; None: the folder's name.

    Raises SealedModelError, OutputError for a full disk, OSError.
    """
    if not folder.is_dir() or (missing := missing_file(folder)) is not None:
        reason = f"has no {missing}" if folder.is_dir() else "is no folder"
        raise SealedModelError(f"{folder}: is not a converted model: it {reason}. Make one with `redoubt convert`")
    on_device = out.is_block_device()
    if not on_device and (out.exists() or out.is_symlink()):
        raise SealedModelError(f"{out}: is there already; only a block device is overwritten")
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    total = 2 * sum(path.stat().st_size for path in paths)
    with tqdm(total=total, unit="B", unit_scale=True, desc="Sealing", disable=not progress) as bar:
        header = Header(name=name or folder.absolute().name, files=[_entry(path, bar) for path in paths])
        beginning = header.sealed(key, secrets.token_bytes(SALT_BYTES))
        cipher = ChunkCipher(key, header, beginning)
        with (_device if on_device else _new_file)(out, cipher.image_bytes) as image:
            image.write(bytes(len(beginning)))
            for path, file in zip(paths, header.files, strict=True):
                _write_chunks(image, path, file, cipher, bar)
            _sync(image)
            image.seek(0)
            image.write(beginning)
            _sync(image)
    return SealReport(header.name, header.digest, cipher.image_bytes, on_device)


def _entry(path: Path, bar: "tqdm[None]") -> FileEntry:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while part := file.read(CHUNK_BYTES):
            digest.update(part)
            size += len(part)
            bar.update(len(part))
    return FileEntry(name=path.name, size_bytes=size, sha256=digest.hexdigest())


def _write_chunks(image: IO[bytes], path: Path, file: FileEntry, cipher: ChunkCipher, bar: "tqdm[None]") -> None:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        for chunk, _ in cipher.chunks_of(file.name, 0, file.size_bytes):
            part = source.read(chunk.size_bytes)
            digest.update(part)
            image.write(cipher.seal(chunk, part))
            bar.update(len(part))
    if digest.hexdigest() != file.sha256:
        raise SealedModelError(f"{path}: changed while it was sealed")


@contextmanager
def _device(out: Path, image_bytes: int) -> Iterator[IO[bytes]]:
    try:
        device = os.open(out, os.O_WRONLY | os.O_EXCL)  # exclusive: not a mounted device
    except OSError as error:
        raise SealedModelError(f"{out}: {error.strerror}") from error
    with os.fdopen(device, "wb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < image_bytes:
            raise SealedModelError(f"{out}: has {size} bytes, and the image needs {image_bytes}")
        file.seek(0)
        yield file


@contextmanager
def _new_file(out: Path, image_bytes: int) -> Iterator[IO[bytes]]:
    """Opens a temporary file that is renamed at the end, if the name is still free."""
    check_free_space(out, image_bytes)
    with tempfile.NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}.partial-") as file:
        yield file
        os.fchmod(file.fileno(), 0o644)  # another user may serve it
        os.link(file.name, out)


def _sync(image: IO[bytes]) -> None:
    image.flush()
    os.fsync(image.fileno())
