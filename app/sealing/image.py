"""The layout of a sealed model, and its cryptography. Opens no files.

    prefix   magic (16 bytes), salt (32), length of the sealed header (4, big endian)
    header   the file table as JSON
    chunks   of up to 1 MiB of one file, file by file in the table's order

Header and chunks are each sealed with AES-256-GCM and followed by their tags of 16 bytes. HKDF-SHA256 makes a key for
the header and one for the chunks from the owner's key and the image's salt. They seal nothing else, so that counters
are enough as nonces. The associated data of the header is the prefix. That of a chunk is the SHA-256 of prefix and
sealed header, the chunk's number and whether it is the last one: no chunk passes in another place or in another image.
Bytes after the last chunk are not part of the image, as a device is larger than what is written to it.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.model_folder import files_digest

MAGIC = b"redoubt-sealed\0\1"
"""Ends with the format's version."""
KEY_BYTES = 32
SALT_BYTES = 32
TAG_BYTES = 16
CHUNK_BYTES = 1 << 20
MOST_HEADER_BYTES = 1 << 20
_PREFIX = struct.Struct(f">16s{SALT_BYTES}sI")
PREFIX_BYTES = _PREFIX.size


class SealedModelError(ValueError):
    """A sealed model can't be made or opened, or its key is unavailable; the message names the file and the reason."""


def _file_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no file name")
    return name


class FileEntry(BaseModel):
    """A file of the model."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, AfterValidator(_file_name)]
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def chunks(self) -> int:
        """Number of its chunks; 0 if it is empty."""
        return -(-self.size_bytes // CHUNK_BYTES)


class Header(BaseModel):
    """The header of an image."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(min_length=1)
    """The model's name in the API."""
    files: list[FileEntry]

    @property
    def digest(self) -> str:
        """The model's digest, as `app.attestation.statement.model_digest` computes it for the folder."""
        return files_digest({file.name: file.sha256 for file in self.files})

    @property
    def chunks(self) -> int:
        """Number of all chunks."""
        return sum(file.chunks for file in self.files)

    def sealed(self, key: bytes, salt: bytes) -> bytes:
        """Returns the image's first bytes, up to the chunks. salt: new for each image. Raises SealedModelError."""
        text = self.model_dump_json().encode()
        if len(text) > MOST_HEADER_BYTES:
            raise SealedModelError(f"a table of {len(self.files)} files is too large for a sealed model")
        prefix = _PREFIX.pack(MAGIC, salt, len(text) + TAG_BYTES)
        return prefix + AESGCM(_derived(key, salt, b"header")).encrypt(_nonce(0), text, prefix)

    @classmethod
    def opened(cls, key: bytes, sealed: bytes) -> Self:
        """Opens the header in an image's first bytes, as many as `header_bytes` says. Raises SealedModelError."""
        prefix = sealed[:PREFIX_BYTES]
        _, salt, _ = _PREFIX.unpack_from(sealed)
        try:
            text = AESGCM(_derived(key, salt, b"header")).decrypt(_nonce(0), sealed[PREFIX_BYTES:], prefix)
            header = cls.model_validate_json(text)
        except InvalidTag as error:
            raise SealedModelError("this key does not open it: is it the model's, and is the image whole?") from error
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise SealedModelError(f"its header is not one that this version of Redoubt reads: {reason}") from error
        if twice := [name for name, count in Counter(file.name for file in header.files).items() if count > 1]:
            raise SealedModelError(f"its header has {twice[0]!r} twice")
        return header


def header_bytes(beginning: bytes) -> int:
    """Number of bytes before the chunks. beginning: the image's PREFIX_BYTES, or more. Raises SealedModelError."""
    if len(beginning) < PREFIX_BYTES or not beginning.startswith(MAGIC):
        raise SealedModelError("is no sealed model: make one with `redoubt seal`")
    _, _, sealed_bytes = _PREFIX.unpack_from(beginning)
    if not TAG_BYTES <= sealed_bytes <= MOST_HEADER_BYTES + TAG_BYTES:
        raise SealedModelError(f"its header claims {sealed_bytes} bytes")
    return PREFIX_BYTES + int(sealed_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The position of a chunk."""

    number: int
    """Index in the image, from 0."""
    offset: int
    """Offset in the image, in bytes."""
    size_bytes: int
    """Size of the plaintext; the sealed chunk is TAG_BYTES longer."""
    is_last: bool


class ChunkCipher:
    """Seals and opens the chunks of one image. Thread-safe."""

    def __init__(self, key: bytes, header: Header, sealed_header: bytes) -> None:
        """sealed_header: the image's bytes before the chunks."""
        _, salt, _ = _PREFIX.unpack_from(sealed_header)
        self._cipher = AESGCM(_derived(key, salt, b"chunks"))
        self._image = hashlib.sha256(sealed_header).digest()
        self._begins: dict[str, tuple[FileEntry, int, int]] = {}
        self._chunks = header.chunks
        number, offset = 0, len(sealed_header)
        for file in header.files:
            self._begins[file.name] = file, number, offset
            number += file.chunks
            offset += file.size_bytes + file.chunks * TAG_BYTES
        self.image_bytes = offset
        """Size of the whole image."""

    def chunks_of(self, name: str, begin: int, end: int) -> Iterator[tuple[Chunk, int]]:
        """Yields the chunks of a range of a file, each with its offset in the file. Raises KeyError."""
        file, number, offset = self._begins[name]
        for i in range(begin // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
            at = i * CHUNK_BYTES
            chunk = Chunk(
                number=number + i,
                offset=offset + i * (CHUNK_BYTES + TAG_BYTES),
                size_bytes=min(CHUNK_BYTES, file.size_bytes - at),
                is_last=number + i == self._chunks - 1,
            )
            yield chunk, at

    def seal(self, chunk: Chunk, plaintext: bytes) -> bytes:
        return self._cipher.encrypt(_nonce(chunk.number), plaintext, self._associated(chunk))

    def open_into(self, chunk: Chunk, sealed: bytes, buffer: memoryview) -> None:
        """Fills a buffer of the chunk's length. Raises SealedModelError; the buffer's contents are then undefined."""
        try:
            self._cipher.decrypt_into(_nonce(chunk.number), sealed, self._associated(chunk), buffer)
        except InvalidTag as error:
            message = f"chunk {chunk.number} at byte {chunk.offset} is not what was sealed there: seal the model again"
            raise SealedModelError(message) from error

    def _associated(self, chunk: Chunk) -> bytes:
        return self._image + struct.pack(">Q?", chunk.number, chunk.is_last)


def _derived(key: bytes, salt: bytes, what: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt, b"redoubt/sealed-model/v1 " + what).derive(key)


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
