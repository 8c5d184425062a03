"""Seals keys of collections for other users: HPKE (RFC 9180) with ML-KEM-768 and X25519 together.

A user's key pair follows from the user's key, so the private half is stored nowhere. Two problems protect it, because
a disk that is stolen today may be read when one of them is solved.
"""

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_X25519_BYTES = 32
SEED_BYTES = 96


class SharingKey:
    """A user's key pair."""

    def __init__(self, seed: bytes) -> None:
        """seed: `SEED_BYTES` bytes that are known to nobody else."""
        self._mlkem = MLKEM768PrivateKey.from_seed_bytes(seed[_X25519_BYTES:])
        self._x25519 = X25519PrivateKey.from_private_bytes(seed[:_X25519_BYTES])

    def public(self) -> bytes:
        """Returns the public half, for `sealed_for`."""
        return self._x25519.public_key().public_bytes_raw() + self._mlkem.public_key().public_bytes_raw()

    def opened(self, sealed: bytes, context: str) -> bytes:
        """Opens what `sealed_for` sealed with the same context. Raises ValueError or InvalidTag."""
        return _SUITE.decrypt(sealed, MLKEM768X25519PrivateKey(self._mlkem, self._x25519), context.encode())


def sealed_for(public: bytes, key: bytes, context: str) -> bytes:
    """Seals a key for the user with that public key."""
    x25519 = X25519PublicKey.from_public_bytes(public[:_X25519_BYTES])
    mlkem = MLKEM768PublicKey.from_public_bytes(public[_X25519_BYTES:])
    return _SUITE.encrypt(key, MLKEM768X25519PublicKey(mlkem, x25519), context.encode())
