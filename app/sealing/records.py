"""Small records, sealed with AES-256-GCM by `cryptography`: each opens only as what and whose it was sealed.

Knows no key and no record; the accounts and the ingresses seal with it.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class SealError(ValueError):
    """What was to be opened was sealed with another key or for another purpose, or has changed."""


def seal(key: bytes, text: bytes, context: str) -> bytes:
    """Nonce, ciphertext, tag. key: 32 bytes. context: what and whose it is; only the same context opens it."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, context.encode())


def unseal(key: bytes, sealed: bytes, context: str) -> bytes:
    """What `seal` has sealed. Raises SealError."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context.encode())
    except (InvalidTag, ValueError) as error:
        raise SealError("sealed with another key, or changed") from error
