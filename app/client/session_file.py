"""The user's sessions from the terminal, one for each service, in a file that only the user can read.

Knows nothing of HTTP, nor whether a session is still valid.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class SessionFileError(Exception):
    """The file can't be read or written; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A user's name and the session's token."""

    name: str
    token: str = field(repr=False)


def user_file() -> Path:
    """Path of the user's sessions by the XDG base directory specification."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "redoubt" / "sessions.json"


class SessionFile:
    """A JSON object: address of a service -> {name, token}. Several chats may use it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, address: str) -> SavedSession | None:
        """Returns the session at a service. Raises SessionFileError."""
        entry = self._read().get(address)
        return None if entry is None else SavedSession(entry["name"], entry["token"])

    def keep(self, address: str, session: SavedSession) -> None:
        """Stores a session, replacing an earlier one. Raises SessionFileError."""
        with self._changing() as entries:
            entries[address] = {"name": session.name, "token": session.token}

    def remove(self, address: str, session: SavedSession) -> None:
        """Removes this session, unless another chat has replaced it. Raises SessionFileError."""
        if self.get(address) == session:
            with self._changing() as entries:
                if entries.get(address, {}).get("token") == session.token:
                    del entries[address]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Yields the entries and writes them atomically at the end."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._failed(error) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            entries = self._read()
            yield entries
            self._write(json.dumps(entries, indent=1, sort_keys=True))
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(folder)

    def _read(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise SessionFileError(f"{self._path}: other users can open it; remove it, or chmod 600")
                entries = json.load(file)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._failed(error) from error
        except ValueError as error:
            raise self._damaged() from error
        if not (isinstance(entries, dict) and all(map(_is_entry, entries.values()))):
            raise self._damaged()
        return entries

    def _write(self, text: str) -> None:
        unfinished = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
            unfinished.replace(self._path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def _failed(self, error: OSError) -> SessionFileError:
        return SessionFileError(f"{self._path}: {error.strerror}")

    def _damaged(self) -> SessionFileError:
        return SessionFileError(f"{self._path}: not a file of sessions; remove it")


def _is_entry(entry: Any) -> bool:
    """Whether the entry has no control characters: a token is sent as a header and a name is printed."""
    name, token = (entry.get("name"), entry.get("token")) if isinstance(entry, dict) else (None, None)
    return (
        isinstance(name, str)
        and name.isprintable()
        and isinstance(token, str)
        and token.isascii()
        and token.isprintable()
    )
