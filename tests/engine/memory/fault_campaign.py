"""Faults of saved pages, injected one at a time: `python -m tests.engine.memory.fault_campaign --faults 10000`.

Each one damages the folder or lets a call to the file system fail, has an engine answer from that folder, and compares
the tokens with those of a clean run, the tokens that were computed with what the fault may cost, and the counters with
what happened. The fake model sees in its pages which tokens they hold: a wrong page is a wrong token. Prints how many
faults of each kind were injected; ends with status 1 at the first wrong answer, and names kind and seed.
"""

import argparse
import errno
import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from app.memory.io_threads import FolderStore
from app.memory.page_file import HEADER_BYTES, MAGIC, TAG_BYTES, PageId, file_bytes
from app.messages.memory import MemoryGrant, PageName, SavedPages
from tests.app.memory.pages import FINGERPRINT, files_in, grant_for, key_of, open_folder, path_of
from tests.engine.memory.failing_os import (
    FailingOs,
    KilledError,
    dies,
    dies_after,
    dies_half_way,
    ends_early,
    fails,
    gives_less,
    refuses_to_write,
    takes_less,
)
from tests.engine.memory.test_engine_memory import ADA, COLD, EVE, PAGE_BYTES, PROMPT, serving

PAGES = 12
"""Full pages of PROMPT."""
FILE_BYTES = file_bytes(PAGE_BYTES)
BOUNDARIES = (
    0,
    1,
    8,
    12,
    16,
    48,
    64,
    80,
    112,
    116,
    HEADER_BYTES,
    HEADER_BYTES + 1,
    FILE_BYTES - TAG_BYTES,
    FILE_BYTES - 1,
)
SECOND_CHAT = grant_for("ada", "second chat")
OTHER_MODEL = key_of("another model")


class WrongAnswerError(AssertionError):
    """A fault changed a token, cost more than it may, or was not counted."""


class Chance(Random):
    """What a fault's number decides: all its chances."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.turn = number // len(KINDS)
        """How many faults of the same kind come before."""


@dataclass(frozen=True, slots=True)
class Clean:
    """Answers of an engine without faults, and the folder that it saved."""

    root: Path
    answer: tuple[int, ...]
    ids: tuple[PageId, ...]
    """ADA's pages of PROMPT, from its beginning."""
    others: tuple[tuple[Path, ...], ...]
    """Pages of the same text, by index: of ADA's second chat, of EVE, of another model."""


@contextmanager
def folder_store(root: Path, fingerprint: bytes = FINGERPRINT) -> Iterator[FolderStore]:
    folder = open_folder(root, page_bytes=PAGE_BYTES, fingerprint=fingerprint)
    store = FolderStore(folder, page_bytes=PAGE_BYTES, page_tokens=4, threads=2)
    try:
        yield store
    finally:
        store.close()


def clean_run(root: Path) -> Clean:
    """Saves PROMPT for all whose files may be exchanged with each other, each by an engine of its own."""
    places: list[list[PageId]] = []
    for grant, fingerprint in ((ADA, FINGERPRINT), (SECOND_CHAT, FINGERPRINT), (EVE, FINGERPRINT), (ADA, OTHER_MODEL)):
        names: dict[int, PageId] = {}
        with folder_store(root, fingerprint) as store, serving(store) as service:
            save = store.save

            def recorded(grant: MemoryGrant, page: PageName, *args: Any, **options: Any) -> None:
                names[page.index] = PageId.of(grant, page, store.fingerprint, 4)  # noqa: B023
                save(grant, page, *args, **options)  # noqa: B023

            with patch.object(store, "save", recorded):
                answer = service.answer(service.ask(PROMPT, grant))
                check(service.flush() == SavedPages(13, 13 * PAGE_BYTES, 0), "the clean run saved other pages")
        places.append([names[index] for index in range(PAGES)])
    own, *others = places
    return Clean(root, answer, tuple(own), tuple(tuple(path_of(root, each) for each in ids) for ids in others))


def check(holds: bool, what: str) -> None:
    if not holds:
        raise WrongAnswerError(what)


def check_answer(clean: Clean, root: Path, usable: int, *, exactly: bool = True) -> dict[str, int]:
    """An engine answers from the folder, of which the first `usable` pages are good. Returns the store's counts.

    not exactly: fewer may be used, as the file system fails now and then.
    """
    with folder_store(root) as store, serving(store) as service:
        check(service.answer(service.ask(PROMPT)) == clean.answer, "another answer than the clean run's")
        computed, least = sum(service.runner.step_tokens), COLD - 4 * usable
        check(computed == least if exactly else least <= computed <= COLD, f"{computed} tokens computed, not {least}")
    return asdict(store.counts)


def counted(counts: dict[str, int], **expected: int) -> None:
    found = {name: counts[name] for name in expected}
    check(found == expected, f"counted {found}, not {expected}")


# --- faults: each gets the clean run, a copy of its folder and a source of chance -------------------------------------


def header_byte(clean: Clean, root: Path, rng: Chance) -> None:
    flip(clean, root, rng, rng.turn % HEADER_BYTES)


def body_byte(clean: Clean, root: Path, rng: Chance) -> None:
    flip(clean, root, rng, rng.randrange(HEADER_BYTES, FILE_BYTES))


def flip(clean: Clean, root: Path, rng: Chance, offset: int) -> None:
    index = rng.randrange(PAGES)
    path = path_of(root, clean.ids[index])
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    counts = check_answer(clean, root, index)
    is_version = offset == len(MAGIC) - 1  # another format's file is nobody's damage, and stays
    counted(counts, damaged_pages=not is_version, failed_reads=0, missing_pages=0)
    check(path.exists() == is_version, "the damaged file is still there, or another format's is not")


def cut(clean: Clean, root: Path, rng: Chance) -> None:
    index, size = rng.randrange(PAGES), rng.choice((*BOUNDARIES, rng.randrange(FILE_BYTES), FILE_BYTES + 1))
    path = path_of(root, clean.ids[index])
    os.truncate(path, size)
    counted(check_answer(clean, root, index), damaged_pages=1, failed_reads=0)
    check(not path.exists(), "the damaged file is still there")


def exchanged(clean: Clean, root: Path, rng: Chance) -> None:
    """A whole file of another position, chat, user or model lies in the place of one's own."""
    index = rng.randrange(PAGES)
    positions = [path_of(clean.root, each) for number, each in enumerate(clean.ids) if number != index]
    source = rng.choice((rng.choice(positions), *(pages[index] for pages in clean.others)))
    shutil.copyfile(source, path_of(root, clean.ids[index]))
    counted(check_answer(clean, root, index), damaged_pages=1, failed_reads=0)


def not_a_file(clean: Clean, root: Path, rng: Chance) -> None:
    """A link to the right file, a pipe, or nothing."""
    index, kind = rng.randrange(PAGES), rng.choice(("link", "pipe", "missing"))
    path = path_of(root, clean.ids[index])
    path.unlink()
    if kind == "link":
        path.symlink_to(path_of(clean.root, clean.ids[index]))
    elif kind == "pipe":
        os.mkfifo(path)
    # `find` sees a missing one already: nothing is loaded behind it.
    counted(check_answer(clean, root, index), damaged_pages=kind != "missing", failed_reads=0)


def stale_temporary(clean: Clean, root: Path, rng: Chance) -> None:
    place = path_of(root, clean.ids[rng.randrange(PAGES)]).parent
    (place / f".tmp-{rng.randbytes(16).hex()}").write_bytes(rng.randbytes(rng.randrange(FILE_BYTES)))
    counted(check_answer(clean, root, PAGES), damaged_pages=0, failed_reads=0, loaded_pages=PAGES)


def failing_read(clean: Clean, root: Path, rng: Chance) -> None:
    """A call fails, or a read ends early for good, while pages are looked up and loaded."""
    code = rng.choice((errno.EIO, errno.ESTALE, errno.EACCES))
    function = rng.choice(("open", "stat", "fstat", "preadv"))
    ends = function == "preadv" and rng.random() < 0.5
    failing = FailingOs(function, ends_early if ends else fails(code), nth=rng.randrange(PAGES))
    with failing.installed():
        counts = check_answer(clean, root, PAGES, exactly=False)
    check(failing.failed == 1, f"{function} was called {failing.calls} times")
    if function == "preadv":
        counted(counts, damaged_pages=ends, failed_reads=not ends)
    else:
        counted(counts, damaged_pages=0)


def short_read(clean: Clean, root: Path, rng: Chance) -> None:
    """Reads that give less than was asked for, and go on."""
    failing = FailingOs("preadv", gives_less, times=rng.randrange(1, 30))
    with failing.installed():
        counts = check_answer(clean, root, PAGES)
    counted(counts, damaged_pages=0, failed_reads=0, loaded_pages=PAGES)


def failing_write(clean: Clean, root: Path, rng: Chance) -> None:
    """Saving fails in some step; what is on disk afterwards is whole, and the answers go on."""
    shutil.rmtree(root)
    code = rng.choice((errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT))
    function = rng.choice(("open", "write", "rename", "fsync", "mkdir"))
    failing = FailingOs(function, fails(code), nth=rng.randrange(3), creating=function == "open")
    with folder_store(root) as store, failing.installed(), serving(store) as service:
        answer = service.answer(service.ask(PROMPT))
        saved = service.flush()
        check(answer == service.answer(service.ask(PROMPT)) == clean.answer, "another answer while a disk fails")
    check(failing.failed == 1, f"{function} was called {failing.calls} times")
    check(saved.saved_pages + saved.unsaved_pages == 13, f"{saved}: not all pages are accounted for")
    check(saved.unsaved_pages > 0, "a page whose saving failed counts as saved")
    check(store.counts.failed_saves > 0, "nothing was counted")
    check(not [path for path in files_in(root) if path.name.startswith(".tmp-")], "a temporary file is left")
    counted(check_answer(clean, root, PAGES, exactly=False), damaged_pages=0, failed_reads=0)


def short_write(clean: Clean, root: Path, rng: Chance) -> None:
    """Writes that take less than they were given, and go on."""
    shutil.rmtree(root)
    failing = FailingOs("write", takes_less, times=rng.randrange(1, 30))
    with folder_store(root) as store, failing.installed(), serving(store) as service:
        service.answer(service.ask(PROMPT))
        check(service.flush().unsaved_pages == 0, "a short write was not continued")
    counted(check_answer(clean, root, PAGES), damaged_pages=0, loaded_pages=PAGES)


def killed_while_writing(clean: Clean, root: Path, rng: Chance) -> None:
    """What a killed writer leaves at each step, of a new page or of one that it writes again."""
    index, step = rng.randrange(PAGES), rng.choice(("opened", "half", "written", "renamed", "before utime"))
    page_id = clean.ids[index]
    folder = open_folder(root, page_bytes=PAGE_BYTES)
    page, room = memoryview(bytearray(PAGE_BYTES)), memoryview(bytearray(FILE_BYTES))
    check(folder.read(page_id, room, page), "the clean page does not open")
    is_new = rng.random() < 0.5
    if is_new:
        path_of(root, page_id).unlink()
    function, failure = {
        "opened": ("write", dies),
        "half": ("write", dies_half_way),
        "written": ("rename", dies),
        "renamed": ("rename", dies_after),
        "before utime": ("utime", dies),
    }[step]
    with FailingOs(function, failure).installed(), suppress(KilledError):
        folder.write(page_id, page, room)
        raise WrongAnswerError("the writer was not killed")
    there = not is_new or step in ("renamed", "before utime")
    counted(check_answer(clean, root, PAGES if there else index), damaged_pages=0, failed_reads=0)


def vanished_folder(clean: Clean, root: Path, rng: Chance) -> None:
    """The disk goes, before a request or between two."""
    with folder_store(root) as store, serving(store) as service:
        if rng.random() < 0.5:
            check(service.answer(service.ask(PROMPT)) == clean.answer, "another answer")
            service.memory.clear(ADA.owner).result(60)
        root.rename(root.with_name("gone"))
        before = sum(service.runner.step_tokens)
        check(service.answer(service.ask(PROMPT)) == clean.answer, "another answer without the disk")
        check(sum(service.runner.step_tokens) - before == COLD, "pages of a disk that is gone were used")
        check(service.flush().saved_pages == 0, "pages were saved to a disk that is gone")


def read_only_folder(clean: Clean, root: Path, rng: Chance) -> None:
    """Everything that writes fails, from the first call on: pages are still read, nothing is saved."""
    keep = rng.randrange(PAGES + 1)
    for page_id in clean.ids[keep:]:
        path_of(root, page_id).unlink()
    with ExitStack() as stack:
        store = stack.enter_context(folder_store(root))
        for function in ("open", "rename", "unlink", "mkdir", "utime"):
            only = refuses_to_write if function == "open" else fails(errno.EROFS)
            stack.enter_context(patch.object(os, function, partial(only, getattr(os, function))))
        with serving(store) as service:
            check(service.answer(service.ask(PROMPT)) == clean.answer, "another answer from a read-only disk")
            check(sum(service.runner.step_tokens) == COLD - 4 * keep, "other pages used than there are")
            service.flush()
    counted(asdict(store.counts), damaged_pages=0, saved_pages=0, loaded_pages=keep)


def two_writers(clean: Clean, root: Path, rng: Chance) -> None:
    """Two engines save the same chat at the same time; files have the same names and either's are good."""
    if rng.random() < 0.5:
        shutil.rmtree(root)
    with folder_store(root) as one, folder_store(root) as two, serving(one) as first, serving(two) as second:
        asked = [(service, service.ask(PROMPT)) for service in (first, second)]
        check(all(service.answer(request) == clean.answer for service, request in asked), "another answer")
        saving = [service.memory.flush(None) for service in (first, second)]
        check(all(each.result(60).unsaved_pages == 0 for each in saving), "one of two writers failed")
    counted(check_answer(clean, root, PAGES), damaged_pages=0, failed_reads=0, loaded_pages=PAGES)


KINDS: tuple[Callable[[Clean, Path, Chance], None], ...] = (
    header_byte,
    body_byte,
    cut,
    exchanged,
    not_a_file,
    stale_temporary,
    failing_read,
    short_read,
    failing_write,
    short_write,
    killed_while_writing,
    vanished_folder,
    read_only_folder,
    two_writers,
)


# --- the campaign -----------------------------------------------------------------------------------------------------


def run(faults: int, folder: Path, *, first: int = 0) -> Counter[str]:
    """Injects so many faults, of all kinds in turn. Returns how many of each. Raises WrongAnswerError, with the number.

    The number of a fault decides all of its chances: `first` repeats one.
    """
    clean = clean_run(folder / "clean")
    injected: Counter[str] = Counter()
    for number in range(first, first + faults):
        kind = KINDS[number % len(KINDS)]
        root = folder / "faulty"
        shutil.copytree(clean.root, root)
        try:
            kind(clean, root, Chance(number))
        except Exception as error:
            raise WrongAnswerError(f"fault {number}, {kind.__name__}: {error}") from error
        injected[kind.__name__] += 1
        for left in (root, root.with_name("gone")):
            shutil.rmtree(left, ignore_errors=True)
    return injected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # a line for each fault
    with tempfile.TemporaryDirectory() as name:
        try:
            injected = run(given.faults, Path(name), first=given.first)
        except WrongAnswerError as error:
            sys.exit(str(error))
    print(json.dumps({"faults": injected.total(), "wrong_answers": 0, "kinds": injected}))


if __name__ == "__main__":
    main()
