"""The keys of the accounts and how each is sealed, by `app.sealing.records`. Knows no table and no HTTP.

KEK: 32 bytes that the operator keeps outside the database. It seals only the root key, so it can be replaced without
the users. UMK: a random key per user, sealed once per credential under root key and credential together; neither alone
opens it. CK: a random key per conversation; SK: a random key per user; both sealed under the UMK.
"""

import hashlib
import hmac
import os
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.accounts.sharing import SEED_BYTES, SharingKey
from app.sealing.records import seal, unseal

KEY_BYTES = 32
KEY_ID_BYTES = 16
SALT_BYTES = 16
_PREFIX = b"redoubt/v1/"


def new_key() -> bytes:
    """Returns 32 random bytes."""
    return os.urandom(KEY_BYTES)


def derive(key: bytes, purpose: str, *, salt: bytes | None = None) -> bytes:
    """Derives a 32-byte key for one purpose by HKDF-SHA256; `key` can't be recovered from it."""
    return HKDF(SHA256(), KEY_BYTES, salt, _PREFIX + purpose.encode()).derive(key)


def mac(key: bytes, message: bytes) -> bytes:
    """Returns HMAC-SHA256, 32 bytes."""
    return hmac.digest(key, message, hashlib.sha256)


def key_id(key: bytes) -> bytes:
    """Returns 16 bytes that identify the key without revealing it."""
    return derive(key, "id")[:KEY_ID_BYTES]


@dataclass(frozen=True, slots=True)
class PasswordCost:
    """The cost of hashing a password: Argon2id (RFC 9106)."""

    memory_kib: int = 64 * 1024
    passes: int = 3
    lanes: int = 4


def stretch(password: str, salt: bytes, cost: PasswordCost) -> bytes:
    """Hashes a password to 32 bytes; takes most of a second and `cost.memory_kib`, and releases the GIL."""
    argon = Argon2id(salt=salt, length=KEY_BYTES, iterations=cost.passes, lanes=cost.lanes, memory_cost=cost.memory_kib)
    return argon.derive(password.encode())


class RootKey:
    """The key from which all that needs no user is derived: names, lookups, folders, audit.

    A UMK needs a credential as well, so the root key alone opens no conversation.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._names = derive(root, "user names")
        self._lookup = derive(root, "user lookup")
        self._owner = derive(root, "page folders")
        self.audit_key = derive(root, "audit")
        self.kept_key = derive(root, "kept secrets")

    @classmethod
    def open(cls, kek: bytes, sealed: bytes) -> "RootKey":
        """Raises SealError if another KEK has sealed it."""
        return cls(unseal(derive(kek, "root key"), sealed, "root key"))

    @classmethod
    def new(cls) -> "RootKey":
        return cls(new_key())

    def sealed(self, kek: bytes) -> bytes:
        """Returns the root key sealed for `open` with the same KEK."""
        return seal(derive(kek, "root key"), self._root, "root key")

    def name_lookup(self, name: str) -> bytes:
        """Returns the 32 bytes by which a user is found; the name is normalized."""
        return mac(self._lookup, name.encode())

    def seal_name(self, name: str, user_id: str) -> bytes:
        return seal(self._names, name.encode(), f"name of {user_id}")

    def unseal_name(self, sealed: bytes, user_id: str) -> str:
        return unseal(self._names, sealed, f"name of {user_id}").decode()

    def owner(self, user_id: str) -> str:
        """Returns the name of the folder of the user's KV pages: 32 hex digits."""
        return mac(self._owner, user_id.encode())[:16].hex()

    def wrap(self, umk: bytes, secret: bytes, user_id: str, credential: str) -> bytes:
        """Seals the user's key for one credential. secret: the credential's, of 128 bits or hashed by Argon2id."""
        return seal(self._wrapping(secret, user_id, credential), umk, f"key of {user_id}")

    def unwrap(self, wrapped: bytes, secret: bytes, user_id: str, credential: str) -> "UserKey":
        """Opens the user's key. Raises SealError if the secret is wrong: this is how credentials are verified."""
        return UserKey(unseal(self._wrapping(secret, user_id, credential), wrapped, f"key of {user_id}"))

    def _wrapping(self, secret: bytes, user_id: str, credential: str) -> bytes:
        return derive(secret, f"user key {user_id} {credential}", salt=self._root)


def new_shared_key(key: "UserKey", user_id: str) -> bytes:
    """Returns a random SK, sealed under the user's key."""
    return key.seal(new_key(), f"shared key of {user_id}")


class UserKey:
    """A user's key (UMK), and what is sealed under it."""

    def __init__(self, umk: bytes) -> None:
        self._umk = umk

    @classmethod
    def new(cls) -> "UserKey":
        return cls(new_key())

    def wrap(self, root: RootKey, secret: bytes, user_id: str, credential: str) -> bytes:
        """Seals the key for one more credential."""
        return root.wrap(self._umk, secret, user_id, credential)

    def names_key(self) -> bytes:
        """Returns 32 bytes from which the names of the user's KV pages are derived."""
        return derive(self._umk, "names")

    def texts_key(self) -> bytes:
        """Returns the 32-byte key under which an ingress seals the user's stored conversations and responses."""
        return derive(self._umk, "texts")

    def sharing_key(self) -> SharingKey:
        """Returns the key pair with which others share collections with the user."""
        parts = SEED_BYTES // KEY_BYTES
        return SharingKey(b"".join(derive(self._umk, f"sharing {part}") for part in range(parts)))

    def conversation_mac(self, name: str | None) -> bytes:
        """Returns 32 bytes by which the user's conversation of that name is found; None: the default one."""
        return mac(derive(self._umk, "conversation names"), b"default" if name is None else b"name " + name.encode())

    def seal(self, text: bytes, context: str) -> bytes:
        """Seals data of the user."""
        return seal(derive(self._umk, "records"), text, context)

    def unseal(self, sealed: bytes, context: str) -> bytes:
        """Raises SealError."""
        return unseal(derive(self._umk, "records"), sealed, context)
