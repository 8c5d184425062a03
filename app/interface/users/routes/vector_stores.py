"""`/v1/vector_stores`: users' collections of documents."""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, get_args

from fastapi import Request
from fastapi.responses import Response

from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.users.gate import AccountsGate
from app.interface.users.knowledge.reading import DocumentReading
from app.interface.users.knowledge.sealed import CollectedDocument, Collection, Collections
from app.interface.users.knowledge.searching import KnowledgeSearch
from app.interface.users.routes.listing import BEFORE, list_query
from app.interface.users.routes.users import body_of, id_of, user_of
from app.interface.wire.vector_stores import (
    CollectedFile,
    DeletedVectorStore,
    DocumentChange,
    DocumentFault,
    DocumentRequest,
    FileBatch,
    FileBatchRequest,
    FileContent,
    FileCounts,
    Members,
    MembersRequest,
    PassageText,
    RemovedFile,
    SearchRequest,
    SearchResult,
    SearchResults,
    TextContent,
    VectorStore,
    VectorStoreChange,
    VectorStoreRequest,
)
from app.knowledge.index import Hit
from app.messages.accounts import AccountsError
from app.messages.knowledge import DocumentCounts, DocumentState, StoredFileBatch

_MOST_BATCH_BYTES = 4 << 20
"""Two thousand files with what people write into attributes; with all that they may have, about 400."""
_FAULTS = {
    "unsupported_file": "unsupported_file",
    "invalid_file": "invalid_file",
    "not_found": "invalid_file",
    "request_too_large": "invalid_file",
}
"""OpenAI's codes by ours; of all others it is `server_error`."""
_STATES: tuple[DocumentState, ...] = get_args(DocumentState)


class VectorStoreRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate, reading: DocumentReading, search: KnowledgeSearch) -> None:
        self._gate = gate
        self._reading = reading
        self._search = search

    # --- collections

    async def create(self, request: Request) -> Response:
        """`POST /v1/vector_stores`."""
        caller, collections = self._collections(request)
        body = await body_of(request, VectorStoreRequest)
        about = {"name": body.name or "", "description": body.description, "metadata": body.metadata or {}}
        collection = await self._gate.to_the_end(collections.new(about))
        if body.file_ids:
            try:
                await self._reading.begin(caller, collections, collection, {file_id: {} for file_id in body.file_ids})
            except AccountsError:  # clients try again: each time would leave an empty one
                await self._gate.to_the_end(collections.delete(collection.stored.id, with_files=False))
                raise
            collection = await collections.get(collection.stored.id)
        return json_response(_shown(collection))

    async def collections(self, request: Request) -> Response:
        """`GET /v1/vector_stores`."""
        query = list_query(request, BEFORE)
        _, collections = self._collections(request)
        found = await collections.listed(query.after, query.limit + 1, newest_first=query.newest_first)
        return json_response(query.listed([_shown(one) for one in found]))

    async def collection(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}`."""
        caller, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        await self._reading.go_on(caller, collections, collection)
        return json_response(_shown(collection))

    async def change(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}`."""
        _, collections = self._collections(request)
        body = await body_of(request, VectorStoreChange)
        collection = await collections.get(id_of(request))
        given = body.model_dump(include={"name", "description", "metadata"}, exclude_unset=True)
        changed = await self._gate.to_the_end(collections.change(collection, {**collection.about, **given}))
        return json_response(_shown(changed))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores/{id}?with_files=true`."""
        _, collections = self._collections(request)
        await self._gate.to_the_end(collections.delete(id_of(request), with_files=_with_files(request)))
        return json_response(DeletedVectorStore(id=id_of(request)).model_dump())

    async def members(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/members`."""
        _, collections = self._collections(request)
        return json_response(_members(request, await collections.members(id_of(request))))

    async def share(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/members`: only administrators share with more users."""
        _, collections = self._collections(request)
        body = await body_of(request, MembersRequest)
        shared = await self._gate.to_the_end(collections.share(id_of(request), body.users))
        return json_response(_members(request, shared))

    # --- documents

    async def add(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/files`."""
        caller, collections = self._collections(request)
        body = await body_of(request, DocumentRequest)
        collection = await collections.get(id_of(request))
        about = {"attributes": body.attributes or {}}
        [document] = await self._reading.begin(caller, collections, collection, {body.file_id: about})
        return json_response(_document(collection, document))

    async def documents(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files`."""
        return await self._listed(request, None)

    async def _listed(self, request: Request, batch_id: str | None) -> Response:
        """batch_id: of the batch whose documents are listed; None: all are."""
        query = list_query(request, "filter", BEFORE)
        wanted = request.query_params.get("filter")
        state = next((one for one in _STATES if one == wanted), None)
        if state != wanted:
            raise errors.invalid(f"'filter' is one of {', '.join(_STATES)}.", "filter", "invalid_value")
        caller, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        found = await collections.documents(
            collection, query.after, query.limit + 1, newest_first=query.newest_first, batch_id=batch_id, only=state
        )
        if any(one.stored.is_abandoned for one in found):
            await self._reading.go_on(caller, collections, collection)
        return json_response(query.listed([_document(collection, one) for one in found]))

    async def document(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files/{file_id}`."""
        _, collection, document = await self._found(request)
        return json_response(_document(collection, document))

    async def change_document(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/files/{file_id}`."""
        body = await body_of(request, DocumentChange)
        collections, collection, document = await self._found(request)
        changing = collections.change_document(collection, document, body.attributes or {})
        return json_response(_document(collection, await self._gate.to_the_end(changing)))

    async def _found(self, request: Request) -> tuple[Collections, Collection, CollectedDocument]:
        """Returns the document that is asked for; if nobody reads it any more, that begins again."""
        caller, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        document = await collections.document(collection, _file_id(request))
        if document.stored.is_abandoned:
            await self._reading.go_on(caller, collections, collection)
        return collections, collection, document

    async def content(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files/{file_id}/content`."""
        _, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        document = await collections.document(collection, _file_id(request))
        passages = list[PassageText]()
        if document.stored.state == "completed":
            async for some, _ in collections.passages(collection, document):
                passages += [PassageText(text=passage.text, page=passage.page) for passage in some]
        return json_response(FileContent(data=passages).model_dump())

    async def remove(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores/{id}/files/{file_id}?with_files=true`."""
        _, collections = self._collections(request)
        with_file = _with_files(request)
        deleting = collections.delete_document(id_of(request), _file_id(request), with_file=with_file)
        await self._gate.to_the_end(deleting)
        return json_response(RemovedFile(id=_file_id(request)).model_dump())

    # --- batches of documents

    async def add_batch(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/file_batches`."""
        caller, collections = self._collections(request)
        try:
            body = await body_of(request, FileBatchRequest, _MOST_BATCH_BYTES)
        except ApiError as error:
            if error.status != 413:
                raise
            raise replace(error, message=f"{error.message} Send fewer files at once.") from None
        collection = await collections.get(id_of(request))
        batch_id = f"vsfb_{uuid.uuid4().hex}"
        await self._reading.begin(caller, collections, collection, _new_documents(body), batch_id=batch_id)
        return json_response(_batch(collection.stored.id, await collections.file_batch(collection.stored.id, batch_id)))

    async def batch(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/file_batches/{batch_id}`."""
        caller, collections = self._collections(request)
        collection_id, batch_id = id_of(request), _batch_id(request)
        batch = await collections.file_batch(collection_id, batch_id)
        if batch.is_abandoned:
            await self._reading.go_on(caller, collections, await collections.get(collection_id))
        return json_response(_batch(collection_id, batch))

    async def batch_documents(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/file_batches/{batch_id}/files`."""
        return await self._listed(request, _batch_id(request))

    async def cancel_batch(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/file_batches/{batch_id}/cancel`: what is read by now stays."""
        _, collections = self._collections(request)
        cancelling = collections.cancel_file_batch(id_of(request), _batch_id(request))
        return json_response(_batch(id_of(request), await self._gate.to_the_end(cancelling)))

    # --- search

    async def search(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/search`."""
        caller, collections = self._collections(request)
        body = await body_of(request, SearchRequest)
        questions = [body.query] if isinstance(body.query, str) else body.query
        documents = await self._search.documents(caller, collections, [id_of(request)], body.filters)
        hits = await self._search.search(caller, documents, questions, body.max_num_results, body.ranking_options)
        found = SearchResults(
            search_query=questions,
            data=[_result(hit) for hit in hits],
            unread=documents.unread,
            words_only=hits.words_only,
        )
        return json_response(found.model_dump())

    def _collections(self, request: Request) -> tuple[Caller, Collections]:
        caller, identity = user_of(request)
        return caller, Collections(self._gate.collections, identity, caller.secret)


def _file_id(request: Request) -> str:
    return str(request.path_params["file_id"])


def _with_files(request: Request) -> bool:
    """Returns whether the files of what is deleted go too. Raises ApiError (400)."""
    wanted = request.query_params.get("with_files", "false")
    if wanted not in ("true", "false") or request.query_params.keys() - {"with_files"}:
        raise errors.invalid("The only parameter is 'with_files': true or false.", "with_files", "invalid_value")
    return wanted == "true"


def _batch_id(request: Request) -> str:
    return str(request.path_params["batch_id"])


def _new_documents(body: FileBatchRequest) -> Mapping[str, Mapping[str, Any]]:
    """Returns the ids of the files, each with what is known of it. Raises ApiError (400)."""
    if (body.file_ids is None) == (body.files is None):
        raise errors.invalid("Exactly one of 'file_ids' and 'files' is needed.", "file_ids", "invalid_value")
    if body.files is None:
        return {file_id: {"attributes": body.attributes or {}} for file_id in body.file_ids or ()}
    return {one.file_id: {"attributes": one.attributes or {}} for one in body.files}


def _counts(counts: DocumentCounts) -> FileCounts:
    by_state = asdict(counts)
    return FileCounts(**by_state, total=sum(by_state.values()))


def _batch(collection_id: str, batch: StoredFileBatch) -> dict[str, Any]:
    counts = batch.counts
    state = "in_progress" if counts.in_progress else "cancelled" if counts.cancelled else "completed"
    return FileBatch.model_validate({
        "id": batch.id,
        "created_at": batch.created,
        "vector_store_id": collection_id,
        "status": state,
        "file_counts": _counts(counts),
    }).model_dump()  # fmt: skip


def _shown(collection: Collection) -> dict[str, Any]:
    stored, about = collection.stored, collection.about
    return VectorStore.model_validate({
        "id": stored.id,
        "created_at": stored.created,
        "name": about.get("name") or "",
        "description": about.get("description"),
        "usage_bytes": stored.sealed_bytes,
        "file_counts": _counts(stored.counts),
        "status": "in_progress" if stored.counts.in_progress else "completed",
        "last_active_at": stored.created,
        "metadata": about.get("metadata") or {},
        "shared": not stored.is_mine,
    }).model_dump()  # fmt: skip


def _document(collection: Collection, document: CollectedDocument) -> dict[str, Any]:
    stored, about = document.stored, document.about
    return CollectedFile.model_validate({
        "id": stored.file_id,
        "created_at": stored.created,
        "vector_store_id": collection.stored.id,
        "status": stored.state,
        "last_error": _fault(about.get("error")),
        "usage_bytes": stored.sealed_bytes,
        "attributes": about.get("attributes") or {},
        "filename": document.name,
        "pages": about.get("pages"),
        "passages": about.get("passages"),
        "notes": about.get("notes") or [],
    }).model_dump()  # fmt: skip


def _fault(error: Mapping[str, str] | None) -> DocumentFault | None:
    """Returns why a document was not read, with a code that OpenAI's clients know."""
    if error is None:
        return None
    code = _FAULTS.get(error["code"], "server_error")
    return DocumentFault.model_validate({"code": code, "message": error["message"], "reason": error["code"]})


def _members(request: Request, names: Any) -> dict[str, Any]:
    return Members(vector_store_id=id_of(request), users=list(names)).model_dump()


def _result(hit: Hit) -> SearchResult:
    passage, document = hit.passage, hit.document
    return SearchResult(
        file_id=document.file_id,
        filename=document.name,
        score=hit.score,
        attributes=dict(document.attributes),
        content=[TextContent(text=passage.text)],
        page=passage.page,
        heading=passage.heading,
    )
