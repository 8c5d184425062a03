"""Reads a sealed model's key from a file, or from the Confidential Data Hub of a confidential container.

The hub gives the key only after the container has attested itself to the key's owner. A key is never logged.
"""

import os
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from app import guest_components
from app.sealing.image import KEY_BYTES, SealedModelError


def read_key(uri: str, data_hub: str | None = None) -> bytes:
    """Reads the key that `model.key` names. uri: file:///PATH or kbs:///REPOSITORY/TYPE/TAG. Raises SealedModelError.

    data_hub: the hub's address; None: that of a confidential container.
    """
    place = urlsplit(uri)
    if place.netloc or not place.path.strip("/") or place.scheme not in ("file", "kbs"):
        raise SealedModelError(f"{uri}: is neither file:///PATH nor kbs:///REPOSITORY/TYPE/TAG")
    if place.scheme == "file":
        return read_key_file(Path(unquote(place.path)))
    return _checked(uri, _from_hub(uri, guest_components.resource_url(place.path.removeprefix("/"), data_hub)))


def read_key_file(path: Path) -> bytes:
    """Reads the key from a file. Raises SealedModelError."""
    try:
        with path.open("rb") as file:
            return _checked(str(path), file.read(KEY_BYTES + 1))
    except OSError as error:
        raise SealedModelError(f"{path}: {error.strerror}; `redoubt seal --new-key` makes a key") from error


def make_key_file(path: Path) -> bytes:
    """Writes a new key, for this user only. Raises SealedModelError, also if the file exists."""
    key = secrets.token_bytes(KEY_BYTES)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
    except FileExistsError as error:
        raise SealedModelError(f"{path}: is there already: leave out --new-key, as no key is overwritten") from error
    except OSError as error:
        raise SealedModelError(f"{path}: {error.strerror}") from error
    return key


def _from_hub(uri: str, url: str) -> bytes:
    try:
        answer = guest_components.request(url)
    except httpx.HTTPError as error:
        raise SealedModelError(
            f"{uri}: no answer from {url} ({error}): kbs:// keys are for confidential containers whose guest components"
            " serve resources (agent.guest_components_rest_api=all)"
        ) from error
    if answer.status_code != httpx.codes.OK:
        raise SealedModelError(
            f"{uri}: {url} answered {answer.status_code}: does the key broker have this resource, and does its policy"
            " release it to this container?"
        )
    return answer.content


def _checked(source: str, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        size = f"more than {KEY_BYTES}" if len(key) > KEY_BYTES else len(key)
        raise SealedModelError(f"{source}: {size} bytes are no key: it has {KEY_BYTES}")
    return key
