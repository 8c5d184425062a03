"""The formats of names, passwords, API keys, session tokens and recovery codes. Knows no table."""

import base64
import hashlib
import re
import secrets
import unicodedata
from dataclasses import dataclass, field

from app.messages.accounts import AccountsError

MIN_PASSWORD_CHARACTERS, MAX_PASSWORD_CHARACTERS = 12, 1024
MAX_NAME_CHARACTERS = 64
MAX_SECRET_CHARACTERS = 128
"""The maximum length of keys and tokens."""

_API_KEY = re.compile(r"rdbt_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_SESSION = re.compile(r"rdbs_[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"\w[\w.@+-]*")


@dataclass(frozen=True, slots=True)
class Credential:
    """A well-formed credential that is not verified yet."""

    id: str
    """The id of the API key or the session: 16 hex digits."""
    is_session: bool
    secret: bytes = field(repr=False)
    token_hash: bytes = field(repr=False)
    """SHA-256 of the whole credential."""


def parse_credential(text: str) -> Credential | None:
    """Parses an API key or a session token; returns None if the text is neither."""
    token_hash = hashlib.sha256(text.encode(errors="replace")).digest()
    if match := _API_KEY.fullmatch(text):
        return Credential(match[1], is_session=False, secret=match[2].encode(), token_hash=token_hash)
    if _SESSION.fullmatch(text):
        return Credential(session_id(token_hash), is_session=True, secret=text.encode(), token_hash=token_hash)
    return None


def session_id(token_hash: bytes) -> str:
    """Returns 16 hex digits."""
    return token_hash.hex()[:16]


def has_session_prefix(text: str) -> bool:
    """Whether the text has the prefix of a session token; it may have expired."""
    return text.startswith("rdbs_")


def new_id() -> str:
    """Returns an id for a user or a conversation: 32 hex digits."""
    return secrets.token_hex(16)


def new_key_id() -> str:
    """Returns an id for a credential: 16 hex digits."""
    return secrets.token_hex(8)


def new_api_key(key_id: str) -> str:
    """Returns an API key with 256 random bits."""
    return f"rdbt_{key_id}_{secrets.token_urlsafe(32)}"


def new_session_token() -> str:
    """Returns a session token with 256 random bits."""
    return f"rdbs_{secrets.token_urlsafe(32)}"


def new_recovery_code() -> str:
    """Returns 160 random bits to be written on paper: eight groups of four letters and digits."""
    code = base64.b32encode(secrets.token_bytes(20)).decode()
    return "-".join(code[i : i + 4] for i in range(0, len(code), 4))


def recovery_secret(code: str) -> bytes:
    """Returns the secret of a recovery code, ignoring case, spaces and hyphens."""
    return re.sub(r"[\s-]", "", code[:MAX_SECRET_CHARACTERS]).upper().encode()


def normalized_name(name: str) -> str:
    """Normalizes a user name for comparison. Raises AccountsError unless it has 1 to 64 letters, digits or `.@+-_`."""
    normal = unicodedata.normalize("NFKC", name[: MAX_NAME_CHARACTERS + 1]).casefold()
    if len(normal) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(normal):
        message = f"A name has 1 to {MAX_NAME_CHARACTERS} letters and digits; . @ + - _ may follow the first."
        raise AccountsError("invalid_value", message, param="name")
    return normal


def normalized_password(password: str) -> str:
    """Normalizes a password before hashing (NFKC, so that keyboards do not matter)."""
    return unicodedata.normalize("NFKC", password[: MAX_PASSWORD_CHARACTERS + 1])


def check_new_password(password: str, param: str = "password") -> None:
    """Raises AccountsError if the password is too short or too long."""
    if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        message = f"A password has {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters."
        raise AccountsError("invalid_value", message, param=param)
