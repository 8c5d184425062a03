"""Authentication: API keys, and the caller that a key stands for.

`KeyCheck` makes callers, or with accounts `app.interface.users.checks.UserCheck`. It knows nothing of what a request
asks for.
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
from app.messages.requests import GenerateRequest
from app.settings import SettingsError


class Meter(Protocol):
    """Counts what one request of a user takes, and can end it: `app.interface.users.gate` has it."""

    def asks(self, model: str, prompt_tokens: int) -> None:
        """A worker is asked. prompt_tokens: of the request, each prompt counted once."""

    def held(self) -> AbstractContextManager[None]:
        """Around each of the request's sequences. Raises AccountsError where the request is ended."""

    def observer(self, request: GenerateRequest) -> Observer:
        """Counts what a sequence makes."""


class Grants(Protocol):
    """Gives users' requests leave to their saved pages: `app.interface.users.grants` has it."""

    def permit(self, identity: Identity, secret: str, conversation: str | None, shared_tokens: int) -> Permit:
        """To the pages of a conversation of the user's; None: the default one. secret: the user's credential."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. Planning cannot do without one."""

    tenant: bytes
    """SHA-256 of the caller's key, or of "user" and the user's id: only requests of one tenant share cached pages. b"":
    the service has no keys, and everybody is one tenant; or a guest."""
    identity: Identity | None = None
    """The user, where there are accounts; None also for a guest."""
    secret: str = field(default="", repr=False)
    """The user's credential, with which the accounts are asked."""
    meter: Meter | None = None
    """Counts what the request takes; on routes that ask a worker, for users only."""
    grants: Grants | None = None
    """Gives leave to the user's saved pages; on routes that ask a worker, where pages are saved, for users only."""
    client: bytes = b""
    """SHA-256 of the client's address where nobody shows a key: among these addresses time is shared."""

    def permit(self, conversation: str | None, shared_tokens: int) -> Permit | None:
        """Leave to the pages saved for that conversation of the user's; None: for the default one.

        shared_tokens: of system prompt and tools at the beginning of each prompt.
        """
        if self.identity is None or self.grants is None:
            return None
        return self.grants.permit(self.identity, self.secret, conversation, shared_tokens)


def anonymous(request: Request) -> Caller:
    """Somebody without a key: no more than the address is known, which the front of the service writes down."""
    address = known_address(request) or (request.client.host if request.client else "")
    return Caller(tenant=b"", client=hashlib.sha256(address.encode()).digest())


def caller_of(request: Request) -> Caller:
    """The caller that `KeyCheck` found.

    Raises RuntimeError on a route without a KeyCheck, so that no caller counts as anonymous by accident.
    """
    caller = getattr(request.state, "caller", None)
    if not isinstance(caller, Caller):
        raise RuntimeError(f"the route {request.url.path} has no KeyCheck, so its caller is not known")
    return caller


def bearer(request: Request) -> str | None:
    """The key of `Authorization: Bearer <key>`; None: there is no such header."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


class KeyCheck:
    """Lets a request through if it shows one of the keys (compared in constant time), or if there are no keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, request: Request) -> None:
        """Leaves the caller in `request.state.caller`, where `caller_of` finds it. Raises ApiError (401)."""
        if not self._digests:
            request.state.caller = anonymous(request)
            return
        key = bearer(request)
        shown = hashlib.sha256((key or "").encode()).digest()
        matches = [hmac.compare_digest(shown, digest) for digest in self._digests]
        if key is None or not any(matches):
            raise errors.unauthorized()
        request.state.caller = Caller(tenant=shown)


MIN_API_KEY_CHARACTERS = 16


def read_api_keys(file: Path) -> tuple[str, ...]:
    """The keys in `file`: one per line, blank lines ignored; kept out of the configuration, which Ray logs.

    Raises SettingsError naming the file where it can't be read, has no key, or has one of under 16 characters.
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
