"""From a model's name to the folder of a converted one: looked up in the store, or fetched and converted into it.

What is unfinished goes on with the next call, of any process: fetched bytes and the progress of a calibration stay.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm  # type: ignore[import-untyped]

from app.commands.coming import say_what_comes
from app.commands.plan_text import size
from app.models.hub import HubFile, Repository, describe_repository, fetch, fetched_bytes, type_of
from app.models.names import read_name
from app.models.skeleton import wanted_files
from app.models.store import Entry, Record, Store, local_record, locked
from quant.errors import OutputError
from quant.packed.packed_file import is_packed_model

if TYPE_CHECKING:
    from quant.conversion.convert import ConversionReport


@dataclass(frozen=True, slots=True)
class Conversion:
    """Options of `quant.conversion.convert.convert`."""

    qtype: str = "auto"
    group_size: int | None = None
    extent: str = "group"
    method: str = "auto"
    calibration_text: Path | None = None
    bits: float | None = None
    chat_template: str | None = None

    @property
    def key(self) -> str:
        """The name of a folder of models that are converted so."""
        if self == Conversion():
            return "auto"
        named = [self.qtype, self.method, *(f"{each:g}" for each in (self.group_size, self.bits) if each is not None)]
        others = (self.extent, self.chat_template, self.calibration_text and self.calibration_text.read_bytes())
        if others != ("group", None, None):
            named.append(hashlib.sha256(repr(others).encode()).hexdigest()[:8])
        return "-".join(named)


def tell(text: str) -> None:
    """To the user, beside the results."""
    print(text, file=sys.stderr, flush=True)


def converted(source: Path, out: Path, options: Conversion, *, force: bool = False, is_foretold: bool = False) -> None:
    """Converts a source on this machine, and prints what came of it. Raises QuantError, ChatModelError, OSError.

    is_foretold: what it takes has been said already.
    """
    report = _convert(source, out, None if is_foretold else tell, options=options, force=force)
    print(
        f"{report.folder}: {report.qtype} by {report.method}, group {report.group_size},"
        f" {report.bits_per_weight:.2f} bits a weight, {report.size_bytes / 1e6:.0f} MB in {report.seconds:.1f} s"
    )
    for note in report.notes:
        print(note)


def converted_into_store(
    name: str,
    options: Conversion,
    *,
    out: Path | None = None,
    force: bool = False,
    keep_source: bool = False,
    is_served: bool = False,
) -> Path:
    """Fetches what a name means now, and converts it; what is there already is not made again.

    out: a folder for the result, beside the store. Raises QuantError, ChatModelError, OSError; KeyboardInterrupt with
    what is left to do.
    """
    store, meant = Store.default(), read_name(name)
    if out is not None and out.exists() and not force:
        raise OutputError(f"{out}: exists already; give another place, or --force to replace it")
    if isinstance(meant, Path):
        return _made_locally(store, meant, options, force=force)
    repository = describe_repository(meant)
    return _made(store, repository, options, out=out, force=force, keep_source=keep_source, is_served=is_served)


def _made_locally(store: Store, source: Path, options: Conversion, *, force: bool) -> Path:
    entry = store.entry(local_record(source)) if source.exists() else None
    if entry is None:
        raise FileNotFoundError(2, "there is no such file or folder", str(source))
    place = entry.place(options.key)
    with locked(entry, tell), _left_clean(entry):
        if force or not is_packed_model(place):
            converted(source, place, options, force=force)
    return place


def _made(
    store: Store,
    repository: Repository,
    options: Conversion,
    *,
    out: Path | None,
    force: bool,
    keep_source: bool,
    is_served: bool,
) -> Path:
    name = repository.name
    ggufs = repository.ggufs()
    kind = None
    if ggufs:
        kind = name.gguf if name.gguf is not None and name.gguf.endswith(".gguf") else type_of(ggufs[0])
    entry = store.entry(Record(name.repository, repository.commit, kind, name.revision, repository.licence))
    place = entry.place(options.key) if out is None else out
    with locked(entry, tell), _left_clean(entry):
        if out is None and not force and is_packed_model(place):
            return place
        entry.source.mkdir(exist_ok=True)
        files = wanted_files(repository, entry.source)
        say_what_comes(repository, files, entry, partial(_convert, options=options), tell, is_served=is_served)
        _fetch_all(repository, files, entry)
        source = entry.source / Path(files[0].name).name if ggufs else entry.source
        converted(source, place, options, force=force, is_foretold=True)
        if not keep_source:
            shutil.rmtree(entry.source)
    return place


def _fetch_all(repository: Repository, files: list[HubFile], entry: Entry) -> None:
    """Fetches the rest, with a bar on a terminal."""
    total, there = sum(file.size_bytes for file in files), fetched_bytes(entry.source, files)
    is_shown = sys.stderr.isatty()
    try:
        with tqdm(total=total, initial=there, unit="B", unit_scale=True, desc="Fetching", disable=not is_shown) as bar:
            fetch(repository, files, entry.source, bar.update)
    except KeyboardInterrupt as interrupt:
        here = size(fetched_bytes(entry.source, files))
        raise KeyboardInterrupt(
            f"interrupted with {here} of {size(total)} here; the same command goes on"
        ) from interrupt


@contextmanager
def _left_clean(entry: Entry) -> Iterator[None]:
    """Removes an entry in which nothing is and nothing was begun."""
    try:
        yield
    finally:
        if not entry.models() and not entry.has_begun():
            shutil.rmtree(entry.folder, ignore_errors=True)


def _convert(
    source: Path, out: Path, tell: Callable[[str], None] | None, *, options: Conversion, force: bool = False
) -> "ConversionReport":
    from app.interface.text.bounded_check import check_model
    from app.messages.model_card import ModelCard
    from quant.conversion.convert import convert
    from quant.files.cache_folder import cache_folder

    def check(folder: Path) -> Sequence[str]:
        card = ModelCard(source.name, str(folder), None, "refuse")
        return check_model(card, "redoubt convert", passed=cache_folder() / "checked")

    return convert(source, out, check=check, force=force, tell=tell, **asdict(options))
