"""Where the server's own key (KEK) is read from: a file, or a confidential guest's resources after attestation.

Never from the environment or the configuration, which Ray displays.
"""

import os
import stat
from pathlib import Path

import httpx

from app import guest_components
from app.accounts.keys import KEY_BYTES, new_key
from app.settings.knobs import SettingsError


def read_kek(source: str) -> bytes:
    """Returns 32 bytes. source: `file:<path>` or `cdh:<repository>/<type>/<tag>`. Raises SettingsError naming it."""
    kind, _, place = source.partition(":")
    try:
        key = _of_file(Path(place)) if kind == "file" else _of_guest(place)
    except (OSError, httpx.HTTPError) as error:
        raise SettingsError(f"accounts.key {source}: {getattr(error, 'strerror', None) or error}") from error
    if len(key) != KEY_BYTES:
        raise SettingsError(f"accounts.key {source}: {len(key)} bytes, not {KEY_BYTES}: `redoubt keygen` makes one")
    return key


def write_kek(path: Path) -> None:
    """Writes a random key to a new file that only its owner can read. Raises FileExistsError, OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(new_key())
        file.flush()
        os.fsync(file.fileno())


def _of_file(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OSError(f"others than its owner may use it (mode {stat.S_IMODE(mode):03o}): chmod 400 {path}")
        return file.read(KEY_BYTES + 1)


def _of_guest(resource: str) -> bytes:
    response = guest_components.request(guest_components.resource_url(resource))
    response.raise_for_status()
    return response.content
