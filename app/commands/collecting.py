"""Collections of documents as the command line works on them, with OpenAI's client. All functions raise `ERRORS`."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openai import APIStatusError, NotFoundError, OpenAI, OpenAIError

from app.client.account import ChatError
from app.client.collections import collection_named

ERRORS = (ChatError, OpenAIError, OSError)
_LOOK_S = 0.5
_WITH_FILES = {"with_files": "true"}
_PATH = "path"
"""The attribute under which a document is replaced; the account page has the same."""
_MOST_PATH_CHARACTERS = 512


def add_documents(client: OpenAI, name: str, paths: Sequence[Path], say: Callable[[str], None]) -> int:
    """Adds documents and waits until they are read; returns how many could not be."""
    files = [each for path in paths for each in _files_in(path)]
    if not files:
        raise ChatError("There is no file to add.")
    collection = collection_named(client, name, make=True)
    waiting: dict[str, Path] = {}
    failed = 0
    for path, shown in files:
        file_id = None
        try:
            file_id = client.files.create(file=path, purpose="assistants").id
            attributes: dict[str, str | float | bool] = {_PATH: shown[-_MOST_PATH_CHARACTERS:]}
            client.vector_stores.files.create(file_id=file_id, vector_store_id=collection.id, attributes=attributes)
        except APIStatusError as error:
            if file_id is not None:
                client.files.delete(file_id)
            say(f"{path}: {error.message}")
            failed += 1
            continue
        waiting[file_id] = path
    while waiting:
        time.sleep(_LOOK_S)
        for file_id, path in list(waiting.items()):
            try:
                document = client.vector_stores.files.retrieve(file_id, vector_store_id=collection.id)
            except NotFoundError:  # somebody else has taken it out, or added a newer one
                del waiting[file_id]
                continue
            if document.status == "in_progress":
                continue
            del waiting[file_id]
            if document.last_error is None:
                say("  ".join([str(path), *_notes(document)]))
                continue
            say(f"{path}: {document.last_error.message}")
            _take_out(client, collection.id, file_id)
            failed += 1
    _take_out_replaced(client, collection.id)
    return failed


def _take_out_replaced(client: OpenAI, collection_id: str) -> None:
    """Takes out documents of which a newer one with the same path has been read."""
    read = set[str]()
    for document in list(client.vector_stores.files.list(collection_id)):  # the newest first
        path = _path_of(document)
        if path in read and document.status != "in_progress":
            _take_out(client, collection_id, document.id)
        if path and document.status == "completed":
            read.add(path)


def listed(client: OpenAI, name: str | None) -> Iterator[str]:
    """Yields a line for each collection, or for each document of one."""
    if name is None:
        for one in client.vector_stores.list():
            shared = "  shared with you" if (one.model_extra or {}).get("shared") else ""
            yield f"{one.id}  {one.name}  {one.file_counts.completed:,} documents{shared}"
        return
    for document in client.vector_stores.files.list(collection_named(client, name).id):
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
