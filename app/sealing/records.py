"""Seals small records with AES-256-GCM from `cryptography`, bound to their purpose and owner.

Knows no key and no record; the accounts and the ingresses use it.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
SEALING_BYTES = _NONCE_BYTES + 16
"""By how much a sealed record is longer: the nonce and the tag."""


class SealError(ValueError):
    """The record was sealed with another key or for another purpose, or has changed."""


def seal(key: bytes, text: bytes, context: str) -> bytes:
    """Returns nonce, ciphertext, tag. key: 32 bytes. context: purpose and owner; only the same context opens it."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, context.encode())


def unseal(key: bytes, sealed: bytes, context: str) -> bytes:
    """Opens what `seal` has sealed. Raises SealError."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context.encode())
    except (InvalidTag, ValueError) as error:
        raise SealError("sealed with another key, or changed") from error
