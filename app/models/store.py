"""The store: a folder of converted models, each found by the name it came from, without a network.

    STORE/layout                                             the version of this arrangement
    STORE/ORG--REPOSITORY[--TYPE]@COMMIT/record.json         where it came from
                                        /source/             what was fetched, until it is converted
                                        /OPTIONS/NAME/       the converted model; NAME is its name in the API
                                        /lock                held by the process that works on it

A folder NAME is there whole or not at all (`quant.files.atomic_folder`). Knows no network and no conversion.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from app.models.names import HubName, read_name
from quant.errors import QuantError
from quant.files.cache_folder import cache_folder, file_state
from quant.files.json_file import read_json_object, write_json
from quant.packed.packed_file import is_packed_model

VARIABLE: Final = "REDOUBT_MODELS"
_LAYOUT: Final = "1"
_RECORD: Final = "record.json"
_COMMIT_DIGITS: Final = 12


class StoreError(QuantError):
    """The store can't be used, or lacks a model; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Record:
    """Where a model came from."""

    repository: str
    """ORG/REPOSITORY, or the absolute path of a local source."""
    commit: str
    """Of a local source a digest of its files' names, sizes and times."""
    gguf: str | None = None
    revision: str | None = None
    """What was asked for when it was pulled."""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One source, and what was made of it."""

    folder: Path
    record: Record

    @property
    def source(self) -> Path:
        """Where its source is fetched to."""
        return self.folder / "source"

    @property
    def name(self) -> str:
        """The model's name in the API."""
        if self.is_local:
            return Path(self.record.repository).name.removesuffix(".gguf")
        return HubName(self.record.repository, None, self.record.gguf).short

    @property
    def is_local(self) -> bool:
        """Whether its source is a path of this machine."""
        return self.record.repository.startswith("/")

    def place(self, options: str = "auto") -> Path:
        """Where the model goes that is converted with these options."""
        return self.folder / options / self.name

    def has_begun(self) -> bool:
        """Whether something is there that an interrupted conversion goes on from."""
        return any(self.source.glob("*")) or any(self.folder.glob("*/.*.calibration/*"))

    def models(self) -> list[Path]:
        """The converted models, the newest first."""
        found = [path.parent for path in self.folder.glob("[!.]*/[!.]*/config.json")]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)

    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def answers(self, name: HubName) -> bool:
        """Whether a name means it, and none of another branch or tag."""
        return self.is_of(name) and (name.revision is not None or self.record.revision is None)

    def is_of(self, name: HubName) -> bool:
        """Whether a name means it."""
        record = self.record
        asked = name.revision in (None, record.revision) or record.commit.startswith(str(name.revision))
        of_type = name.gguf is None or name.gguf.upper() == (record.gguf or "").upper()
        return record.repository.lower() == name.repository.lower() and asked and of_type


@dataclass(frozen=True, slots=True)
class Store:
    """Opened at a folder, which need not be there."""

    root: Path

    @staticmethod
    def default() -> "Store":
        """The one of REDOUBT_MODELS, or in the user's cache. Raises StoreError for another version's."""
        store = Store(Path(os.environ.get(VARIABLE) or cache_folder() / "models").absolute())
        if is_packed_model(store.root):
            raise StoreError(f"{store.root}: is a model and no store of models: {VARIABLE} is to name another folder")
        layout = store.root / "layout"
        if layout.exists() and (found := layout.read_text().strip()) != _LAYOUT:
            raise StoreError(
                f"{store.root}: another version of Redoubt wrote this store (layout {found:.20}, this one has"
                f" {_LAYOUT}): name another folder in {VARIABLE}"
            )
        return store

    def entries(self) -> list[Entry]:
        """All of them, by name. Raises QuantError for a record that is damaged."""
        return [Entry(path.parent, _read_record(path)) for path in sorted(self.root.glob(f"[!.]*/{_RECORD}"))]

    def entry(self, record: Record) -> Entry:
        """The entry of a source, made if it is not there. Raises OSError."""
        parts = [record.repository.strip("/").replace("/", "--"), *([record.gguf] if record.gguf else [])]
        if record.repository.startswith("/"):
            parts = ["local", Path(record.repository).name]
        entry = Entry(self.root / f"{'--'.join(parts)}@{record.commit[:_COMMIT_DIGITS]}", record)
        place = entry.folder / _RECORD
        if not place.exists() or (record.revision is None and _read_record(place).revision is not None):
            entry.folder.mkdir(parents=True, exist_ok=True)
            (self.root / "layout").write_text(f"{_LAYOUT}\n")
            temporary = entry.folder / f"{_RECORD}.{os.getpid()}"
            write_json(temporary, asdict(record))
            temporary.replace(place)
        return entry

    def find(self, name: Path | HubName) -> list[Entry]:
        """The entries with a converted model that a name means, the newest first."""
        record = local_record(name) if isinstance(name, Path) else None
        found = [
            entry
            for entry in self.entries()
            if entry.models() and (entry.record == record if isinstance(name, Path) else entry.answers(name))
        ]
        return sorted(found, key=lambda entry: entry.models()[0].stat().st_mtime, reverse=True)

    def named(self, name: str) -> list[Entry]:
        """All entries that a name means, finished or not, also of a source that is gone. Raises ModelNameError."""
        local = str(Path(name).expanduser().absolute())
        if found := [entry for entry in self.entries() if entry.record.repository == local]:
            return found
        meant = read_name(name)
        return [entry for entry in self.entries() if isinstance(meant, HubName) and entry.is_of(meant)]


def _read_record(path: Path) -> Record:
    try:
        return Record(**read_json_object(path))
    except TypeError as error:
        raise StoreError(f"{path}: is no record of this version: remove its folder and pull the model again") from error


def converted_model(name: str) -> Path | None:
    """The folder of a converted model: the path itself, or the newest of the default store; None: it is to be made.

    Raises StoreError, ModelNameError, OSError.
    """
    meant = read_name(name)
    if isinstance(meant, Path) and is_packed_model(meant):
        return meant.absolute()
    found = Store.default().find(meant)
    return found[0].models()[0] if found else None


def model_here(name: str) -> Path:
    """The same, where nothing may be made. Raises StoreError, ModelNameError, OSError."""
    if (found := converted_model(name)) is None:
        raise not_in_the_store(name)
    return found


def not_in_the_store(name: str) -> StoreError:
    """The error that names the way to get it."""
    return StoreError(f"{name}: is not in the store {Store.default().root}: redoubt pull {name}")


def local_record(path: Path) -> Record:
    """The record of a source on this machine. Raises OSError."""
    state = json.dumps(file_state(path.absolute()))
    return Record(str(path.absolute()), hashlib.sha256(state.encode()).hexdigest())


@contextmanager
def locked(entry: Entry, tell: Callable[[str], None], *, wait: bool = True) -> Iterator[None]:
    """Holds an entry; waits for another process that does. wait: False raises StoreError instead."""
    lock = entry.folder / "lock"
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise StoreError(f"{entry.name}: another process works on it: wait, or end that one") from None
                tell(f"Another process works on {entry.name}; waiting for it ...")
                fcntl.flock(handle, fcntl.LOCK_EX)
            if lock.exists() and lock.stat().st_ino == os.fstat(handle).st_ino:
                yield
                return
            entry.folder.mkdir(parents=True, exist_ok=True)  # it was removed meanwhile
        finally:
            os.close(handle)


def remove(entry: Entry) -> None:
    """Removes an entry, under a hidden name first. Raises StoreError if another process works on it."""
    with locked(entry, lambda text: None, wait=False):
        hidden = entry.folder.with_name(f".{entry.folder.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        entry.folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
