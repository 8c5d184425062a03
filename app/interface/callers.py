"""Who asks: API keys, and what a key is worth."""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from fastapi import Request

from app.interface import errors
from app.settings import SettingsError


class KeyCheck:
    """Lets a request through that shows one of the keys (compared in constant time), or all without keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, request: Request) -> None:
        """Leaves who calls in `request.state.tenant`: the key's digest, or nothing. Raises ApiError (401)."""
        request.state.tenant = b""
        if not self._digests:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        shown = hashlib.sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(shown, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise errors.unauthorized()
        request.state.tenant = shown


MIN_API_KEY_CHARACTERS = 16


def read_api_keys(file: Path) -> tuple[str, ...]:
    """The keys in `file`: one per line, blank lines ignored; kept out of the configuration, which Ray logs.

    Raises SettingsError naming the file where it can't be read, has no key, or has one of under 16 characters.
    """
    try:
        keys = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"ingress.api_key_file {file}: {error}") from error
    if not keys:
        raise SettingsError(f"ingress.api_key_file {file}: there is no key in it")
    if any(len(key) < MIN_API_KEY_CHARACTERS for key in keys):
        raise SettingsError(f"ingress.api_key_file {file}: a key is shorter than {MIN_API_KEY_CHARACTERS} characters")
    return keys
