"""Authentication by API keys, and the caller of a request.

`KeyCheck` creates callers; with accounts, `app.interface.users.checks.UserCheck` does. It knows nothing of what a
request asks for.
"""

import hashlib
import hmac
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fastapi import Request

from app.interface.request import errors
from app.interface.request.client_address import known_address
from app.interface.request.observers import Observer, Permit
from app.messages.accounts import Identity
from app.messages.requests import GenerateRequest, Priority
from app.settings.knobs import SettingsError


class Meter(Protocol):
    """Counts the tokens of a user's request, and can end it; implemented in `app.interface.users.gate`."""

    def note_model(self, model: str, prompt_tokens: int) -> None:
        """Notes the model that is asked. prompt_tokens: of the request, each prompt counted once."""

    def cancellable(self) -> AbstractContextManager[None]:
        """Wraps each of the request's sequences. Raises AccountsError if the request was ended."""

    def observer(self, request: GenerateRequest) -> Observer:
        """Counts a sequence's tokens."""


class Grants(Protocol):
    """Grants users' requests access to their saved KV pages; implemented in `app.interface.users.grants`."""

    def permit(self, identity: Identity, secret: str, conversation: str | None, shared_tokens: int) -> Permit:
        """Grants access to a conversation's KV pages; None: the default one. secret: the user's credential."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. Planning requires one."""

    tenant: bytes
    """SHA-256 of the API key, or of "user" and the user's id; b"" for guests, or if the service has no keys. Only
    requests of the same tenant share cached KV pages."""
    identity: Identity | None = None
    """The user, if there are accounts; None for a guest."""
    secret: str = field(default="", repr=False)
    """The user's credential, for calls to the accounts."""
    meter: Meter | None = None
    """Counts the request's tokens; only for users, on routes that generate."""
    grants: Grants | None = None
    """Grants access to saved KV pages; only for users, on routes that generate, if pages are saved."""
    client: bytes = b""
    """SHA-256 of the client's address if it has no key; used for fair scheduling among such clients."""
    priority: Priority = Priority.NORMAL
    """BATCH: nobody waits for the answers."""

    def permit(self, conversation: str | None, shared_tokens: int) -> Permit | None:
        """Grants access to the saved KV pages of a conversation of the user; None: the default one.

        shared_tokens: of system prompt, tools and files at the beginning of each prompt.
        """
        if self.identity is None or self.grants is None:
            return None
        return self.grants.permit(self.identity, self.secret, conversation, shared_tokens)


def anonymous(request: Request) -> Caller:
    """Returns a caller without a key, identified by the address only."""
    address = known_address(request) or (request.client.host if request.client else "")
    return Caller(tenant=b"", client=hashlib.sha256(address.encode()).digest())


def caller_of(request: Request) -> Caller:
    """Returns the caller that `KeyCheck` found.

    Raises RuntimeError on a route without a KeyCheck, so that no caller counts as anonymous by accident.
    """
    caller = getattr(request.state, "caller", None)
    if not isinstance(caller, Caller):
        raise RuntimeError(f"the route {request.url.path} has no KeyCheck, so its caller is not known")
    return caller


def sent_key(request: Request) -> str | None:
    """Returns the key of `Authorization: Bearer <key>`, or of Anthropic's `x-api-key`; None without either."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")


class KeyCheck:
    """Accepts requests with one of the keys (compared in constant time), or all if there are no keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, request: Request) -> None:
        """Sets `request.state.caller` for `caller_of`. Raises ApiError (401)."""
        if not self._digests:
            request.state.caller = anonymous(request)
            return
        key = sent_key(request)
        shown = hashlib.sha256((key or "").encode()).digest()
        matches = [hmac.compare_digest(shown, digest) for digest in self._digests]
        if key is None or not any(matches):
            raise errors.unauthorized()
        request.state.caller = Caller(tenant=shown)


MIN_API_KEY_CHARACTERS = 16


def read_api_keys(file: Path) -> tuple[str, ...]:
    """Reads the keys of `file`, one a line; they are kept out of the configuration, which Ray logs.

    Raises SettingsError naming the file if it can't be read, has no key, or has one of under 16 characters.
    """
    try:
        keys = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except OSError as error:
        raise SettingsError(f"ingress.api_key_file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"ingress.api_key_file {file}: {error}") from error
    if not keys:
        raise SettingsError(f"ingress.api_key_file {file}: there is no key in it")
    if any(len(key) < MIN_API_KEY_CHARACTERS for key in keys):
        raise SettingsError(
            f"ingress.api_key_file {file}: a key is shorter than {MIN_API_KEY_CHARACTERS} characters;"
            " `openssl rand -hex 24` makes one"
        )
    return keys
