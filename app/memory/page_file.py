r"""The file of one page: a header in the clear, and the page encrypted with a key that only this file has.

Little-endian:

  magic "RDBTKV\0\1" 8 | header bytes u32 (128) | flags u32 (0) | fingerprint 32 | owner 16 | key id 16 | name 32 |
  page index u32 | nonce 12 | ciphertext | tag 16

AES-256-GCM; the associated data is the header without its nonce. Its key is HKDF-SHA256(key of the conversation or of
the user, info = "page" || fingerprint || name), so a file that was moved, renamed or made for another model does not
open, whatever its header says. The name on disk is bound to the key's id, so that two conversations with the same text
have two files, and a disk does not show that the texts are the same.

Knows neither folders nor what a page contains.
"""

import hashlib
import os
import struct
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.messages.memory import MemoryGrant, PageName

MAGIC: Final = b"RDBTKV\0\1"
_HEADER: Final = struct.Struct("<8sII32s16s16s32sI12s")
HEADER_BYTES: Final = _HEADER.size
TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12
_AUTHENTICATED_BYTES: Final = HEADER_BYTES - NONCE_BYTES
KEY_ID_OFFSET: Final = 8 + 4 + 4 + 32 + 16
KEY_ID_BYTES: Final = 16
assert HEADER_BYTES == 128


class PageFileError(Exception):
    """A page file is not what its path says; the message names the wrong part."""


class OtherFormatError(PageFileError):
    """The file has another version of the format and must not be judged or removed."""


@dataclass(frozen=True, slots=True)
class PageId:
    """Determines a page's path and how it is decrypted. `key` appears in no repr."""

    owner: bytes
    """16 bytes."""
    fingerprint: bytes
    """32 bytes: the model and its numerics (`app.memory.fingerprint`)."""
    key_id: bytes
    """16 bytes."""
    name: bytes
    """32 bytes: the page's digest bound to the key's id."""
    index: int
    key: bytes
    """32 bytes: the conversation's or the user's key, from which each file's own key is derived."""

    def __repr__(self) -> str:
        return f"PageId(owner={self.owner.hex()}, name={self.name.hex()}, index={self.index})"

    @staticmethod
    def of(grant: MemoryGrant, page: PageName, fingerprint: bytes, page_tokens: int) -> "PageId":
        """Makes the id of a page under this grant.

        Pages wholly inside system prompt and tools are shared by all chats.
        """
        shared = (page.index + 1) * page_tokens <= grant.shared_tokens
        key, key_id = (
            (grant.shared_key, grant.shared_key_id) if shared else (grant.conversation_key, grant.conversation_key_id)
        )
        name = hashlib.sha256(page.digest + key_id).digest()
        return PageId(bytes.fromhex(grant.owner), fingerprint, key_id, name, page.index, key)

    def _header(self) -> bytes:
        """The header without its nonce, which is authenticated."""
        return _HEADER.pack(
            MAGIC, HEADER_BYTES, 0, self.fingerprint, self.owner, self.key_id, self.name, self.index, bytes(NONCE_BYTES)
        )[:_AUTHENTICATED_BYTES]

    def _cipher(self) -> AESGCM:
        info = b"page" + self.fingerprint + self.name
        return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self.key))


def file_bytes(page_bytes: int) -> int:
    """The file size of a page with `page_bytes` bytes."""
    return HEADER_BYTES + page_bytes + TAG_BYTES


@dataclass(frozen=True, slots=True)
class Place:
    """A file's path as the names of its folders and its own, in hex."""

    owner: str
    model: str
    name: str


def header_place(header: bytes) -> Place:
    """The path that a file with these first HEADER_BYTES belongs to. It need not open. Raises PageFileError."""
    if len(header) < HEADER_BYTES:
        raise PageFileError("it is shorter than a header")
    magic, size, flags, fingerprint, owner, _, name, _, _ = _HEADER.unpack(header)
    if magic != MAGIC or size != HEADER_BYTES or flags != 0:
        raise PageFileError("its header is no page's of this format")
    return Place(owner.hex(), fingerprint.hex()[:16], name.hex())


def seal(page_id: PageId, page: memoryview, out: memoryview) -> None:
    """Writes the whole file, file_bytes(len(page)) long, to `out`. Every call draws a new nonce."""
    header, nonce = page_id._header(), os.urandom(NONCE_BYTES)
    out[:_AUTHENTICATED_BYTES] = header
    out[_AUTHENTICATED_BYTES:HEADER_BYTES] = nonce
    page_id._cipher().encrypt_into(nonce, page, header, out[HEADER_BYTES:])


def unseal(page_id: PageId, file: memoryview, out: memoryview) -> None:
    """Writes the page to `out`, len(file) - HEADER_BYTES - TAG_BYTES long.

    `out` is staging memory: it is written before the tag is checked, and invalid if this raises. Raises PageFileError;
    OtherFormatError for another version's file.
    """
    if len(file) != file_bytes(len(out)):
        raise PageFileError(f"it has {len(file)} bytes, not {file_bytes(len(out))}")
    found, expected = _HEADER.unpack(file[:HEADER_BYTES]), _HEADER.unpack(page_id._header() + bytes(NONCE_BYTES))
    if found[0] != MAGIC and found[0][:-1] == MAGIC[:-1]:
        raise OtherFormatError(f"it has format {found[0][-1]}, not {MAGIC[-1]}")
    for name, one, other in zip(_FIELDS, found, expected, strict=False):
        if one != other:
            raise PageFileError(f"its {name} is another one")
    try:
        page_id._cipher().decrypt_into(found[-1], file[HEADER_BYTES:], file[:_AUTHENTICATED_BYTES], out)
    except InvalidTag:
        raise PageFileError("its contents are not what was sealed") from None


_FIELDS: Final = ("magic", "header size", "flags", "fingerprint", "owner", "key id", "name", "page index")
