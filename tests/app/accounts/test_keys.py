import base64
import os
import pickle

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from hypothesis import given
from hypothesis import strategies as st

from app.accounts.keys import (
    KEY_BYTES,
    PasswordCost,
    RootKey,
    UserKey,
    key_id,
    new_key,
    stretch,
)
from app.messages.accounts import ChangedPassword, ConversationKey, NewKey, PageKeys, Session
from app.sealing.records import SealError, seal, unseal

KEK, ROOT = bytes(32), RootKey(b"r" * 32)


@given(st.binary(max_size=100), st.text(max_size=20))
def test_what_is_sealed_opens_with_its_key_and_context_only(text: bytes, context: str) -> None:
    key = new_key()
    sealed = seal(key, text, context)
    assert unseal(key, sealed, context) == text
    for wrong in [
        (new_key(), sealed, context),
        (key, sealed, context + "x"),
        (key, sealed[:-1], context),
        (key, b"", ""),
    ]:
        with pytest.raises(SealError):
            unseal(*wrong)


def test_every_changed_bit_is_noticed() -> None:
    key = new_key()
    sealed = seal(key, b"a user's key", "context")
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SealError):
            unseal(key, bytes(changed), "context")


def test_the_form_is_nonce_ciphertext_tag() -> None:
    key = new_key()
    sealed = seal(key, b"text", "context")
    assert AESGCM(key).decrypt(sealed[:12], sealed[12:], b"context") == b"text"
    assert seal(key, b"text", "context") != sealed


def test_a_users_key_takes_the_root_key_and_the_secret_and_belongs_to_one_credential() -> None:
    umk = UserKey.new()
    wrapped = umk.wrap(ROOT, b"secret", "ann", "c1")
    assert ROOT.unwrap(wrapped, b"secret", "ann", "c1").names_key() == umk.names_key()
    other = RootKey(b"s" * 32)
    for root, secret, user, credential in [
        (other, b"secret", "ann", "c1"),
        (ROOT, b"Secret", "ann", "c1"),
        (ROOT, b"secret", "bob", "c1"),
        (ROOT, b"secret", "ann", "c2"),
    ]:
        with pytest.raises(SealError):
            root.unwrap(wrapped, secret, user, credential)


def test_another_kek_does_not_open_the_root_key() -> None:
    root = RootKey.new()
    sealed = root.sealed(KEK)
    assert RootKey.open(KEK, sealed).owner("ann") == root.owner("ann")
    with pytest.raises(SealError):
        RootKey.open(b"k" * 32, sealed)


def test_keys_for_different_purposes_differ() -> None:
    umk = UserKey(b"u" * 32)
    root = RootKey(b"u" * 32)
    derived = [
        umk.names_key(),
        key_id(b"u" * 32) * 2,
        root.audit_key,
        root.name_lookup("ann"),
        bytes.fromhex(root.owner("ann")) * 2,
    ]
    assert len(set(derived)) == len(derived)
    assert all(len(each) == KEY_BYTES for each in derived)


def test_passwords_are_stretched_as_rfc_9106_says() -> None:
    # Its Argon2id with the costs that we use, by the library's own check of a PHC string.
    salt = os.urandom(16)
    stretched = stretch("a password", salt, PasswordCost())
    parts = [base64.b64encode(part).decode().rstrip("=") for part in (salt, stretched)]
    Argon2id.verify_phc_encoded(b"a password", f"$argon2id$v=19$m=65536,t=3,p=4${parts[0]}${parts[1]}")


def test_nothing_secret_is_in_a_repr() -> None:
    secret = b"\xaa" * 32
    pages = PageKeys("owner", secret, secret, b"id")
    shown = [pages, ConversationKey("c", secret, b"id")]
    assert not any("xaa" in repr(each) for each in shown)
    for kind in (NewKey, ChangedPassword, Session):
        hidden = [name for name in ("secret", "recovery_code", "token") if name in kind.__dataclass_fields__]
        assert hidden
        assert not any(kind.__dataclass_fields__[name].repr for name in hidden)
    assert pickle.loads(pickle.dumps(pages)) == pages
