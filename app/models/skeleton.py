"""A model as far as its files' headers tell it: small files whole, weights as holes behind their headers.

What a conversion says and refuses before it reads weights it says of a skeleton too, when a few megabytes have come.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.models.hub import INDEX, HubFile, Repository, fetch, fetch_beginning, fetched_bytes, place_of
from quant.errors import SourceError
from quant.files.json_file import read_json_object
from quant.sources.gguf_file import read_gguf

_GGUF_BYTES: Final = (4 << 20, 32 << 20, 256 << 20)
"""Beginnings of a GGUF, of which one has the header with the vocabulary."""
_SAFETENSORS_BYTES: Final = 128 << 10
"""Of each file; more where its header takes more."""
_MOST_HEADER_BYTES: Final = 100 << 20
_TELLING_BYTES: Final = 4 << 20
"""Of fewer the time is that of asking."""


@dataclass(slots=True)
class Pace:
    """How fast files come."""

    bytes_per_s: float = 0.0
    """Of the fastest piece that was large enough to tell; 0: there was none."""

    @contextmanager
    def measured(self, source: Path, file: HubFile) -> Iterator[None]:
        """Of what comes of a file meanwhile."""
        before, began_s = fetched_bytes(source, [file]), time.monotonic()
        yield
        came = fetched_bytes(source, [file]) - before
        if came >= _TELLING_BYTES:
            self.bytes_per_s = max(self.bytes_per_s, came / (time.monotonic() - began_s))


def wanted_files(repository: Repository, source: Path) -> list[HubFile]:
    """What is to be fetched; of a folder the small files are fetched for that. Raises HubError, SourceError."""
    if ggufs := repository.ggufs():
        return ggufs
    small = repository.small_files()
    names: list[str] = []
    if any(file.name == INDEX for file in small):
        fetch(repository, [repository.file(INDEX)], source)
        index = read_json_object(source / INDEX).get("weight_map")
        names = [str(name) for name in index.values()] if isinstance(index, dict) else []
    return [*small, *repository.weights(names)]


def make_skeleton(repository: Repository, files: list[HubFile], source: Path, folder: Path, pace: Pace) -> Path:
    """Writes it into an empty folder; returns what `open_source` opens. source: where the files are fetched to."""
    for file in files:
        place = place_of(folder, file)
        place.parent.mkdir(exist_ok=True)
        name = place.name
        if name.endswith(".gguf"):
            _write_gguf(repository, file, source, place, pace)
        elif name.endswith(".safetensors"):
            beginning = fetch_beginning(repository, file, source, _SAFETENSORS_BYTES)
            header = 8 + min(int.from_bytes(beginning[:8], "little"), _MOST_HEADER_BYTES)
            if header > len(beginning):
                beginning = fetch_beginning(repository, file, source, header)
            _write(place, beginning, file.size_bytes)
        else:
            with pace.measured(source, file):
                fetch(repository, [file], source)
            place.symlink_to(place_of(source, file))
    return folder / Path(files[0].name).name if files[0].name.endswith(".gguf") else folder


def _write_gguf(repository: Repository, file: HubFile, source: Path, place: Path, pace: Pace) -> None:
    for most_bytes in _GGUF_BYTES:
        with pace.measured(source, file):
            beginning = fetch_beginning(repository, file, source, most_bytes)
        _write(place, beginning, file.size_bytes)
        with suppress(SourceError):
            read_gguf(place)
            return


def _write(place: Path, beginning: bytes, size_bytes: int) -> None:
    with place.open("wb") as out:
        out.write(beginning)
        out.truncate(size_bytes)
