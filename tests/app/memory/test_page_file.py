"""A page's file: its bytes, that only its own place opens it, and that any other byte does not."""

import hashlib
import hmac
import struct
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.memory.page_file import HEADER_BYTES, OtherFormatError, PageFileError, PageId, file_bytes, seal, unseal
from app.messages.requests import GenerateRequest
from tests.app.memory.pages import (
    FILE_BYTES,
    FINGERPRINT,
    PAGE_BYTES,
    PAGE_TOKENS,
    contents_of,
    grant_for,
    id_of,
    key_of,
    page_of,
)


def sealed(page_id: PageId) -> bytearray:
    file = bytearray(FILE_BYTES)
    seal(page_id, memoryview(contents_of(page_id)), memoryview(file))
    return file


def opened(page_id: PageId, file: bytes | bytearray) -> bytes:
    page = bytearray(PAGE_BYTES)
    unseal(page_id, memoryview(file), memoryview(page))
    return bytes(page)


def test_the_bytes_are_those_of_the_format() -> None:
    """Opened by hand, with nothing of the code under test but the grant."""
    grant, page = grant_for("ada"), page_of("text", 7)
    file = sealed(PageId.of(grant, page, FINGERPRINT, PAGE_TOKENS))
    magic, header_bytes, flags, fingerprint, owner, key_id, name, index, nonce = struct.unpack(
        "<8sII32s16s16s32sI12s", file[:128]
    )
    assert (magic, header_bytes, flags, index) == (b"RDBTKV\0\1", 128, 0, 7)
    assert (fingerprint, owner.hex(), key_id) == (FINGERPRINT, grant.owner, grant.conversation_key_id)
    assert name == hashlib.sha256(page.digest + key_id).digest()
    extracted = hmac.digest(bytes(32), grant.conversation_key, "sha256")  # RFC 5869
    key = hmac.digest(extracted, b"page" + fingerprint + name + b"\1", "sha256")
    contents = AESGCM(key).decrypt(nonce, bytes(file[128:]), bytes(file[:116]))
    assert contents == contents_of(id_of("ada", "text", 7))
    assert len(file) == file_bytes(PAGE_BYTES) == 128 + PAGE_BYTES + 16


def test_pages_of_system_prompt_and_tools_have_the_users_key() -> None:
    grant = grant_for("ada", shared_tokens=2 * PAGE_TOKENS + 1)
    ids = [PageId.of(grant, page_of("text", index), FINGERPRINT, PAGE_TOKENS) for index in range(4)]
    assert [page_id.key for page_id in ids] == [grant.shared_key] * 2 + [grant.conversation_key] * 2
    assert [page_id.key_id for page_id in ids] == [grant.shared_key_id] * 2 + [grant.conversation_key_id] * 2


def test_neither_keys_nor_contents_are_shown() -> None:
    grant = grant_for("ada")
    page_id = PageId.of(grant, page_of("text"), FINGERPRINT, PAGE_TOKENS)
    for secret in (grant.names_key, grant.conversation_key, grant.shared_key):
        for shown in (repr(grant), repr(page_id), str(page_id)):
            assert secret.hex() not in shown
            assert repr(secret) not in shown
    file = bytes(sealed(page_id))
    contents = contents_of(page_id)
    assert all(contents[at : at + 8] not in file for at in range(0, PAGE_BYTES, 8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"owner": "../" + "a" * 29}, "owner: not 32 hex digits"),
        ({"owner": "A" * 32}, "owner: not 32 hex digits"),
        ({"names_key": b"secret"}, "names_key: not 32 bytes"),
        ({"conversation_key": b"secret" * 6}, "conversation_key: not 32 bytes"),
        ({"shared_key": b""}, "shared_key: not 32 bytes"),
        ({"conversation_key_id": b"secret" * 6}, "conversation_key_id: not 16 bytes"),
        ({"shared_key_id": b""}, "shared_key_id: not 16 bytes"),
        ({"shared_tokens": -1}, "shared_tokens: less than 0"),
    ],
)
def test_a_grant_that_is_none_is_refused_without_its_keys(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$") as refused:
        replace(grant_for("ada"), **wrong)
    assert "secret" not in str(refused.value)


def test_a_request_shows_no_key() -> None:
    grant = grant_for("ada")
    shown = repr(GenerateRequest("a", (1,), 1, tenant=b"", memory=grant))
    assert "memory" not in shown
    assert repr(grant.conversation_key) not in shown


def test_every_seal_has_a_nonce_of_its_own() -> None:
    files = {bytes(sealed(id_of("ada", "text"))) for _ in range(50)}
    assert len(files) == len({file[116:128] for file in files}) == 50
    assert all(opened(id_of("ada", "text"), file) == contents_of(id_of("ada", "text")) for file in files)


def test_every_flipped_bit_is_noticed() -> None:
    page_id = id_of("ada", "text")
    file = sealed(page_id)
    rng = Random(1)
    body = sorted(rng.sample(range(HEADER_BYTES, FILE_BYTES), 300)) + list(range(FILE_BYTES - 16, FILE_BYTES))
    for at in [*range(HEADER_BYTES), *body]:
        for bit in range(8) if at < HEADER_BYTES else [rng.randrange(8)]:
            file[at] ^= 1 << bit
            with pytest.raises(PageFileError):
                opened(page_id, file)
            file[at] ^= 1 << bit
    assert opened(page_id, file) == contents_of(page_id)


def test_every_length_but_its_own_is_noticed() -> None:
    page_id = id_of("ada", "text")
    file = sealed(page_id)
    for length in (0, 1, 8, 115, 116, 127, 128, 129, 144, FILE_BYTES - 17, FILE_BYTES - 16, FILE_BYTES - 1):
        with pytest.raises(PageFileError, match=f"it has {length} bytes, not {FILE_BYTES}"):
            opened(page_id, file[:length])
    with pytest.raises(PageFileError, match=f"it has {FILE_BYTES + 1} bytes"):
        opened(page_id, file + b"\0")


OTHERS = {
    "another user": id_of("eve", "text"),
    "another conversation": id_of("ada", "text", conversation="another"),
    "another text": id_of("ada", "another"),
    "another page": id_of("ada", "text", 1),
    "another model": id_of("ada", "text", fingerprint=key_of("another model")),
    "another key": id_of("ada", "text", key=key_of("another key")),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_a_file_opens_in_its_own_place_only(other: PageId) -> None:
    """Swapped as it is, and with the header that the other place wants."""
    own = id_of("ada", "text")
    file = sealed(own)
    with pytest.raises(PageFileError):
        opened(other, file)
    forged = sealed(other)[:116] + file[116:]
    with pytest.raises(PageFileError, match="its contents are not what was sealed"):
        opened(other, forged)


def test_another_version_of_the_format_is_told_from_damage() -> None:
    file = sealed(id_of("ada", "text"))
    file[7] = 2
    with pytest.raises(OtherFormatError, match="it has format 2, not 1"):
        opened(id_of("ada", "text"), file)
