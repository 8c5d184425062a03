"""Collections of documents as the command line works on them, with OpenAI's client. All functions raise `ERRORS`."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from openai import (
    APIConnectionError,
    APIStatusError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    OpenAIError,
)

from app.client.account import ChatError
from app.client.collections import collection_named
from app.client.v1 import reason

ERRORS = (ChatError, OpenAIError, OSError)
Result = TypeVar("Result")
_LOOK_S = 0.5
_AT_ONCE: Final = 50
"""Files that are sent before they are added together."""
_MOST_LISTED: Final = 100
_DOES_NOT_ANSWER: Final = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_TRIES: Final = 30
_WAIT_S = 2.0
"""Between tries of a call that the service does not answer."""
_WITH_FILES = {"with_files": "true"}
_PATH = "path"
"""The attribute under which a document is replaced; the account page has the same."""
_MOST_PATH_CHARACTERS = 512


def add_documents(client: OpenAI, name: str, paths: Sequence[Path], say: Callable[[str], None]) -> int:
    """Adds documents and waits until they are read; returns how many could not be.

    Waits for a service that does not answer for a time. Raises ChatError then, which says how many were added.
    """
    files = [each for path in paths for each in _files_in(path)]
    if not files:
        raise ChatError("There is no file to add.")
    adding = _Adding(client, collection_named(client, name, make=True).id, say)
    try:
        adding.add(files)
        adding.take_out_replaced()
    except APIConnectionError as error:
        done = f"{adding.added:,} of {len(files):,} files were added"
        raise ChatError(f"{reason(error)} {done}: when it is there again, add the others.") from error
    return adding.failed


class _Adding:
    """Adds files to a collection, some at once: they are read while the next ones are sent. Raises OpenAIError."""

    def __init__(self, client: OpenAI, collection_id: str, say: Callable[[str], None]) -> None:
        self._client = client
        self._collection_id = collection_id
        self._say = say
        self._batches: dict[str, dict[str, Path]] = {}
        """The paths of files whose end was not told yet, by file ids, of each batch that has some; the oldest first."""
        self._counts: object = None
        """Of the oldest batch, when its documents were listed last."""
        self.added = 0
        self.failed = 0

    def add(self, files: Sequence[tuple[Path, str]]) -> None:
        """Adds files, each with the path that it has in the collection, and waits until all are read."""
        for begin in range(0, len(files), _AT_ONCE):
            some = files[begin : begin + _AT_ONCE]
            sent = [(file_id, *each) for each in some if (file_id := self._sent(each[0])) is not None]
            if sent:
                self._add_batch(sent)
            self._tell()
        while self._batches:
            time.sleep(_LOOK_S)
            self._tell()

    def _sent(self, path: Path) -> str | None:
        """Returns the id of the uploaded file; None, and says why, if it was refused."""
        try:
            return self._insist(lambda: self._client.files.create(file=path, purpose="assistants")).id
        except APIStatusError as error:
            self._fail(path, error.message)
            return None

    def _add_batch(self, sent: Sequence[tuple[str, Path, str]]) -> None:
        files: Any = [
            {"file_id": file_id, "attributes": {_PATH: shown[-_MOST_PATH_CHARACTERS:]}} for file_id, _, shown in sent
        ]
        batches = self._client.vector_stores.file_batches
        try:
            batch = self._insist(lambda: batches.create(self._collection_id, files=files))
        except APIStatusError as error:
            is_added = isinstance(error, ConflictError)  # by a call whose answer was lost
            if len(sent) > 1:  # all or none: those that can be added are
                for one in sent:
                    self._add_batch([one])
                return
            [(file_id, path, _)] = sent
            if is_added:
                self._say(f"{path}: it is being read.")
                self.added += 1
                return
            self._insist(lambda: self._client.files.delete(file_id))
            self._fail(path, error.message)
            return
        self._batches[batch.id] = {file_id: path for file_id, path, _ in sent}
        self.added += len(sent)

    def _tell(self) -> None:
        """Says what is new of the oldest batch, which is read first."""
        if not self._batches:
            return
        batch_id, waiting = next(iter(self._batches.items()))
        batches = self._client.vector_stores.file_batches
        where: Any = {"vector_store_id": self._collection_id}
        try:
            batch = self._insist(lambda: batches.retrieve(batch_id, **where))
            if batch.file_counts == self._counts:
                return
            documents = self._insist(lambda: [*batches.list_files(batch_id, limit=_MOST_LISTED, **where)])
        except NotFoundError:  # somebody else has taken all of it out, or added newer ones
            del self._batches[batch_id]
            self._counts = None
            return
        for document in documents:
            if document.status != "in_progress" and (path := waiting.pop(document.id, None)) is not None:
                self._tell_end(document, path)
        self._counts = batch.file_counts
        if not batch.file_counts.in_progress:
            del self._batches[batch_id]
            self._counts = None

    def _tell_end(self, document: Any, path: Path) -> None:
        if document.last_error is None:
            self._say("  ".join([str(path), *_notes(document)]))
            return
        self._fail(path, document.last_error.message)
        self._insist(lambda: _take_out(self._client, self._collection_id, document.id))

    def take_out_replaced(self) -> None:
        """Takes out documents of which a newer one with the same path has been read."""
        read = set[str]()
        listing = self._client.vector_stores.files
        for document in self._insist(lambda: [*listing.list(self._collection_id, limit=_MOST_LISTED)]):  # newest first
            path = _path_of(document)
            if path in read and document.status != "in_progress":
                self._insist(partial(_take_out, self._client, self._collection_id, document.id))
            if path and document.status == "completed":
                read.add(path)

    def _fail(self, path: Path, message: str) -> None:
        self._say(f"{path}: {message}")
        self.failed += 1

    def _insist(self, call: Callable[[], Result]) -> Result:
        """Returns what the call returns; repeats it while the service does not answer."""
        for left in reversed(range(_TRIES)):
            try:
                return call()
            except (APIConnectionError, InternalServerError, ConflictError) as error:
                # A call whose answer was lost has added the files: they are read, which refuses them meanwhile.
                is_lost = isinstance(error, APIConnectionError) or error.status_code in _DOES_NOT_ANSWER
                if not left or not (is_lost or (isinstance(error, ConflictError) and left < _TRIES - 1)):
                    raise
                if left == _TRIES - 1:
                    self._say("The service does not answer: waiting for it.")
                time.sleep(_WAIT_S)
        raise AssertionError


def listed(client: OpenAI, name: str | None) -> Iterator[str]:
    """Yields a line for each collection, or for each document of one."""
    if name is None:
        for one in client.vector_stores.list(limit=_MOST_LISTED):
            shared = "  shared with you" if (one.model_extra or {}).get("shared") else ""
            yield f"{one.id}  {one.name}  {one.file_counts.completed:,} documents{shared}"
        return
    for document in client.vector_stores.files.list(collection_named(client, name).id, limit=_MOST_LISTED):
        error = document.last_error
        state = f"{document.status}: {error.message}" if error is not None else document.status
        yield "  ".join([document.id, _shown_name(document), state, *_notes(document)])


def found(client: OpenAI, name: str, question: str) -> Iterator[str]:
    """Yields the best passages."""
    for hit in client.vector_stores.search(collection_named(client, name).id, query=question):
        page = (hit.model_extra or {}).get("page")
        where = hit.filename if page is None else f"{hit.filename}, page {page}"
        yield f"{where} ({hit.score:.2f})\n{hit.content[0].text}\n"


def removed(client: OpenAI, name: str) -> str:
    collection = collection_named(client, name)
    client.vector_stores.delete(collection.id, extra_query=_WITH_FILES)
    return f"Deleted with its files: {collection.name}"


def _take_out(client: OpenAI, collection_id: str, file_id: str) -> None:
    with suppress(NotFoundError):
        client.vector_stores.files.delete(file_id, vector_store_id=collection_id, extra_query=_WITH_FILES)


def _files_in(path: Path) -> Iterator[tuple[Path, str]]:
    """Yields a file and its name, or all files of a folder but hidden ones, with their paths from its name on."""
    if path.is_file():
        yield path, path.name
    elif path.is_dir():
        for each in sorted(path.rglob("*")):
            below = each.relative_to(path)
            if each.is_file() and not any(part.startswith(".") for part in below.parts):
                yield each, f"{path.resolve().name}/{below.as_posix()}"
    else:
        raise ChatError(f"{path}: there is no such file or folder")


def _path_of(document: Any) -> str:
    return str((document.attributes or {}).get(_PATH) or "")


def _shown_name(document: Any) -> str:
    return _path_of(document) or str((document.model_extra or {}).get("filename") or "")


def _notes(document: Any) -> list[str]:
    return list((document.model_extra or {}).get("notes") or [])
