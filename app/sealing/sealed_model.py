"""Reads a sealed model from a file or a block device: its small files like a folder's, its weights into given memory.

Writes nothing, and holds at most one chunk beside what the caller asked for.
"""

import hashlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from app.messages.model_card import ModelCard
from app.model_folder import SMALL_FILES, WEIGHTS
from app.sealing.image import PREFIX_BYTES, TAG_BYTES, ChunkCipher, Header, SealedModelError, header_bytes
from app.sealing.keys import read_key

_IDENTITY_DIGITS = 16
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def open_model(card: ModelCard) -> "Path | SealedModel":
    """Opens the model's folder, or the sealed model that the card describes. Raises SealedModelError."""
    if card.key is None:
        return Path(card.path)
    model = SealedModel(Path(card.path), read_key(card.key))
    if model.name != card.name:
        raise SealedModelError(
            f"{model}: was sealed under the name {model.name!r}, and model.served_name is {card.name!r}"
        )
    if card.sha256 not in (None, model.digest):
        raise SealedModelError(f"{model}: its digest is {model.digest}, not model.sha256, {card.sha256}")
    return model


def model_identity(model: "Path | SealedModel") -> str:
    """Identifies a version of a model's files, on every machine alike, by 16 hexadecimal digits.

    Hashes a folder's small files, and the size and samples of the weights, so that a large model takes milliseconds.
    Missing files count too. Raises OSError.
    """
    if isinstance(model, SealedModel):
        return model.digest[:_IDENTITY_DIGITS]
    digest = hashlib.sha256()
    for name in SMALL_FILES:
        content = (model / name).read_bytes() if (model / name).is_file() else b"none"
        digest.update(hashlib.sha256(content).digest())
    if (model / WEIGHTS).is_file():
        with (model / WEIGHTS).open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            digest.update(size_bytes.to_bytes(8, "little"))
            last = max(size_bytes - _SAMPLE_BYTES, 0)
            for i in range(_SAMPLES):
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, last * i // (_SAMPLES - 1)))
    return digest.hexdigest()[:_IDENTITY_DIGITS]


def is_sealed(path: Path) -> bool:
    """Whether a file or block device begins like a sealed model. Raises OSError."""
    with path.open("rb") as file:
        try:
            header_bytes(file.read(PREFIX_BYTES))
        except SealedModelError:
            return False
    return True


class SealedModel:
    """An open image. `model / name` is one of its files (`app.model_folder.ModelFile`). Thread-safe for reading."""

    def __init__(self, path: Path, key: bytes) -> None:
        """Reads and checks the header, and that the image is not cut off. Raises SealedModelError."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block us
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error
        weakref.finalize(self, os.close, self._file)
        try:
            sealed_header = self._read(0, header_bytes(self._read(0, PREFIX_BYTES)))
            header = Header.opened(key, sealed_header)
        except SealedModelError as error:
            raise self._error(str(error)) from error
        self._cipher = ChunkCipher(key, header, sealed_header)
        self._sizes = {file.name: file.size_bytes for file in header.files}
        self.name = header.name
        """The model's name in the API."""
        self.digest = header.digest
        """Digest of the files, as `app.attestation.statement.model_digest` computes it for the folder."""
        if (there := os.lseek(self._file, 0, os.SEEK_END)) < self._cipher.image_bytes:
            raise self._error(f"is cut off: {there} bytes of {self._cipher.image_bytes}")

    def __str__(self) -> str:
        return str(self._path)

    def __truediv__(self, name: str) -> "SealedFile":
        return SealedFile(self, name)

    @property
    def names(self) -> Sequence[str]:
        return list(self._sizes)

    def size(self, name: str) -> int:
        """A file's size. Raises SealedModelError."""
        if name not in self._sizes:
            raise self._error(f"holds no {name}")
        return self._sizes[name]

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fills the buffer with the file's bytes from `offset` on. Raises SealedModelError."""
        end = offset + len(buffer)
        assert end <= self.size(name)
        for chunk, begin in self._cipher.chunks_of(name, offset, end):
            first, last = max(offset, begin), min(end, begin + chunk.size_bytes)
            wanted = buffer[first - offset : last - offset]
            is_whole = last - first == chunk.size_bytes
            plaintext = wanted if is_whole else memoryview(bytearray(chunk.size_bytes))
            try:
                self._cipher.open_into(chunk, self._read(chunk.offset, chunk.size_bytes + TAG_BYTES), plaintext)
            except SealedModelError as error:
                raise self._error(str(error)) from error
            if not is_whole:
                wanted[:] = plaintext[first - begin : last - begin]

    def _read(self, offset: int, size: int) -> bytes:
        """Reads `size` bytes, fewer only at the end of the file."""
        try:
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise SealedModelError(f"can't be read: {error.strerror}") from error

    def _error(self, reason: str) -> SealedModelError:
        return SealedModelError(f"{self._path}: {reason}")


class SealedFile:
    """A file of a sealed model, which may be missing."""

    def __init__(self, model: SealedModel, name: str) -> None:
        self._model = model
        self._name = name

    def __str__(self) -> str:
        return f"{self._model}/{self._name}"

    def is_file(self) -> bool:
        return self._name in self._model.names

    def read_text(self, encoding: str) -> str:
        """Returns the whole text. Raises FileNotFoundError, SealedModelError, UnicodeDecodeError."""
        if not self.is_file():
            raise FileNotFoundError(str(self))
        content = bytearray(self._model.size(self._name))
        self._model.read_into(self._name, 0, memoryview(content))
        return content.decode(encoding)
