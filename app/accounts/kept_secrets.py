"""Credentials of users with open batches, sealed, in the memory of a process that outlives this one's Ray.

`redoubt serve` has an anonymous file in memory for them (`app.launch.private_folder`): it is on no disk, and is gone
with that process. The root key opens it.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from app.accounts.keys import RootKey
from app.sealing.records import SealError, seal, unseal

logger = logging.getLogger(__name__)

_PURPOSE = "credentials of open batches"
_MOST_BYTES = 64 << 20


class KeptSecrets:
    """That memory, for one process at a time."""

    def __init__(self, root: RootKey, path: Path | None) -> None:
        """path: of the file; None: nothing is kept."""
        self._key = root.kept_key
        self._path = path

    def read(self) -> Mapping[str, Sequence[str]]:
        """Returns the credentials by user; none if there are none, or a write was broken off."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                found: Mapping[str, Sequence[str]] = orjson.loads(unseal(self._key, file.read(_MOST_BYTES), _PURPOSE))
        except (OSError, SealError):
            return {}
        return found

    def write(self, seen: Mapping[str, Sequence[str]]) -> None:
        """Replaces the credentials. If that fails, batches wait for their users after a loss of everything here."""
        if self._path is None:
            return
        try:
            with self._path.open("r+b") as file:
                file.write(seal(self._key, orjson.dumps(seen), _PURPOSE))
                file.truncate()
        except OSError as error:
            logger.warning("the credentials of open batches are not kept: %s", os.strerror(error.errno or 0))
