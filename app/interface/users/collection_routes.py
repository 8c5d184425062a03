"""The routes of users' collections of documents, beside those of `user_routes`."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.interface.documents.openapi import Route
from app.interface.encode.encoders import Encoders
from app.interface.generate.reception import Reception
from app.interface.users.gate import AccountsGate
from app.interface.users.knowledge.file_search import FileSearch
from app.interface.users.knowledge.reading import DocumentReading
from app.interface.users.knowledge.searching import KnowledgeSearch
from app.interface.users.routes.vector_stores import VectorStoreRoutes
from app.interface.users.user_routes import BEFORE, FULL, LIST, NONE
from app.interface.wire.vector_stores import (
    CollectedFile,
    CollectedFileList,
    DeletedVectorStore,
    DocumentChange,
    DocumentRequest,
    FileBatch,
    FileBatchRequest,
    FileContent,
    Members,
    MembersRequest,
    RemovedFile,
    SearchRequest,
    SearchResults,
    VectorStore,
    VectorStoreChange,
    VectorStoreList,
    VectorStoreRequest,
)

_OWNER = "It is shared with you: only its owner may change it."
_OWNER_OR_ADMIN = f"{_OWNER} Only administrators share theirs with more users."
_LIST = {name: LIST[name] for name in ("after", "limit", "order")} | BEFORE


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What one ingress does with collections."""

    routes: VectorStoreRoutes
    file_search: FileSearch


def knowledge_of(gate: AccountsGate, reception: Reception) -> Knowledge:
    """Makes what reads and searches collections."""
    encoders, files = Encoders(reception.service), reception.files
    reading = DocumentReading(gate, files.reader, encoders, lambda caller, of: files.stored(caller, of, "file_id"))
    search = KnowledgeSearch(encoders, reading)
    return Knowledge(VectorStoreRoutes(gate, reading, search), FileSearch(gate.collections, search, reception))


def collection_routes(stores: VectorStoreRoutes) -> Sequence[Route]:
    """Returns the routes."""
    every, one = "/v1/vector_stores", "/v1/vector_stores/{id}"
    files, file = f"{one}/files", f"{one}/files/{{file_id}}"
    batches, batch = f"{one}/file_batches", f"{one}/file_batches/{{batch_id}}"
    none = {404: NONE}
    mine = {**none, 403: _OWNER}
    full = {**mine, 429: FULL}
    with_files = {"with_files": "true: your files that it was read from are deleted, too; without it they stay."}
    states = {"filter": "in_progress, completed, failed or cancelled; without it all."}
    return (
        Route(
            "POST",
            every,
            stores.create,
            "Makes a collection.",
            VectorStore,
            VectorStoreRequest,
            refuses={**none, 429: FULL},
        ),
        Route("GET", every, stores.collections, "Your collections.", VectorStoreList, query=_LIST, refuses=none),
        Route("GET", one, stores.collection, "A collection.", VectorStore, refuses=none),
        Route("POST", one, stores.change, "Changes its name.", VectorStore, VectorStoreChange, refuses=full),
        Route(
            "DELETE", one, stores.delete, "Deletes a collection.", DeletedVectorStore, query=with_files, refuses=mine
        ),
        Route("GET", f"{one}/members", stores.members, "With whom it is shared.", Members, refuses=mine),
        Route(
            "POST",
            f"{one}/members",
            stores.share,
            "Shares it with these users and no others.",
            Members,
            MembersRequest,
            refuses={**mine, 403: _OWNER_OR_ADMIN, 409: "A user has no key to share with yet."},
        ),
        Route(
            "POST",
            files,
            stores.add,
            "Adds a file of yours, which is read in the background.",
            CollectedFile,
            DocumentRequest,
            refuses={**full, 409: "It is being read."},
        ),
        Route(
            "GET",
            files,
            stores.documents,
            "A collection's documents.",
            CollectedFileList,
            query={**_LIST, **states},
            refuses=none,
        ),
        Route("GET", file, stores.document, "A document.", CollectedFile, refuses=none),
        Route(
            "POST",
            file,
            stores.change_document,
            "Changes a document's attributes.",
            CollectedFile,
            DocumentChange,
            refuses={**full, 409: "It is being read."},
        ),
        Route("GET", f"{file}/content", stores.content, "A document's passages.", FileContent, refuses=none),
        Route("DELETE", file, stores.remove, "Takes a document out.", RemovedFile, query=with_files, refuses=mine),
        Route(
            "POST",
            batches,
            stores.add_batch,
            "Adds several files, which are read in the background.",
            FileBatch,
            FileBatchRequest,
            refuses={**full, 409: "One of them is being read."},
        ),
        Route("GET", batch, stores.batch, "Files that were added together.", FileBatch, refuses=none),
        Route(
            "GET",
            f"{batch}/files",
            stores.batch_documents,
            "Their documents.",
            CollectedFileList,
            query={**_LIST, **states},
            refuses=none,
        ),
        Route("POST", f"{batch}/cancel", stores.cancel_batch, "Cancels what is not read yet.", FileBatch, refuses=mine),
        Route(
            "POST",
            f"{one}/search",
            stores.search,
            "Searches a collection.",
            SearchResults,
            SearchRequest,
            computes=True,
            refuses=none,
        ),
    )
