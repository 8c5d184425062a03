"""`/v1/vector_stores`: users' collections of documents."""

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.users.gate import AccountsGate
from app.interface.users.knowledge.reading import DocumentReading
from app.interface.users.knowledge.sealed import CollectedDocument, Collection, Collections
from app.interface.users.knowledge.searching import KnowledgeSearch
from app.interface.users.routes.listing import list_query, listed
from app.interface.users.routes.users import body_of, id_of, user_of
from app.interface.wire.vector_stores import (
    CollectedFile,
    DeletedVectorStore,
    DocumentRequest,
    FileContent,
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

_STATES = ("in_progress", "completed", "failed", "cancelled")


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
        for file_id in dict.fromkeys(body.file_ids or ()):
            await self._reading.begin(caller, collections, collection, file_id, {})
        if body.file_ids:
            collection = await collections.get(collection.stored.id)
        return json_response(_shown(collection))

    async def collections(self, request: Request) -> Response:
        """`GET /v1/vector_stores`."""
        query = list_query(request)
        _, collections = self._collections(request)
        found = await collections.listed(query.after, query.limit + 1, newest_first=query.newest_first)
        return json_response(listed([_shown(one) for one in found], query.limit))

    async def collection(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}`."""
        _, collections = self._collections(request)
        return json_response(_shown(await collections.get(id_of(request))))

    async def change(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}`."""
        _, collections = self._collections(request)
        body = await body_of(request, VectorStoreChange)
        collection = await collections.get(id_of(request))
        given = body.model_dump(include={"name", "description", "metadata"}, exclude_unset=True)
        changed = await self._gate.to_the_end(collections.change(collection, {**collection.about, **given}))
        return json_response(_shown(changed))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores/{id}`."""
        _, collections = self._collections(request)
        await self._gate.to_the_end(collections.delete(id_of(request)))
        return json_response(DeletedVectorStore(id=id_of(request)).model_dump())

    async def members(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/members`."""
        _, collections = self._collections(request)
        return json_response(_members(request, await collections.members(id_of(request))))

    async def share(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/members`: for administrators."""
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
        document = await self._gate.to_the_end(
            self._reading.begin(caller, collections, collection, body.file_id, about)
        )
        return json_response(_document(collection, document))

    async def documents(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files`."""
        query = list_query(request, "filter")
        state = request.query_params.get("filter")
        if state is not None and state not in _STATES:
            raise errors.invalid(f"'filter' is one of {', '.join(_STATES)}.", "filter", "invalid_value")
        caller, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        found, after = list[dict[str, Any]](), query.after
        while len(found) <= query.limit:
            some = await collections.documents(collection, after, query.limit + 1, newest_first=query.newest_first)
            for each in some:
                shown = _document(collection, await self._reading.go_on(caller, collections, collection, each))
                if state in (None, shown["status"]):
                    found.append(shown)
            if len(some) <= query.limit:
                break
            after = some[-1].stored.file_id
        return json_response(listed(found[: query.limit + 1], query.limit))

    async def document(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files/{file_id}`."""
        caller, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        document = await collections.document(collection, _file_id(request))
        document = await self._reading.go_on(caller, collections, collection, document)
        return json_response(_document(collection, document))

    async def content(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files/{file_id}/content`."""
        _, collections = self._collections(request)
        collection = await collections.get(id_of(request))
        document = await collections.document(collection, _file_id(request))
        passages = list[PassageText]()
        async for some, _ in collections.passages(collection, document):
            passages += [PassageText(text=passage.text, page=passage.page) for passage in some]
        return json_response(FileContent(data=passages).model_dump())

    async def remove(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores/{id}/files/{file_id}`: the file itself stays."""
        _, collections = self._collections(request)
        await self._gate.to_the_end(collections.delete_document(id_of(request), _file_id(request)))
        return json_response(RemovedFile(id=_file_id(request)).model_dump())

    # --- search

    async def search(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/search`."""
        caller, collections = self._collections(request)
        body = await body_of(request, SearchRequest)
        questions = [body.query] if isinstance(body.query, str) else body.query
        hits = await self._search.search(
            caller,
            collections,
            [id_of(request)],
            questions,
            body.max_num_results,
            filters=body.filters,
            ranking=body.ranking_options,
        )
        return json_response(SearchResults(search_query=questions, data=[_result(hit) for hit in hits]).model_dump())

    def _collections(self, request: Request) -> tuple[Caller, Collections]:
        caller, identity = user_of(request)
        return caller, Collections(self._gate.collections, identity, caller.secret)


def _file_id(request: Request) -> str:
    return str(request.path_params["file_id"])


def _shown(collection: Collection) -> dict[str, Any]:
    stored, about = collection.stored, collection.about
    counts = {"in_progress": stored.in_progress, "completed": stored.completed, "failed": stored.failed}
    return VectorStore.model_validate({
        "id": stored.id,
        "created_at": stored.created,
        "name": about.get("name") or "",
        "description": about.get("description"),
        "usage_bytes": stored.sealed_bytes,
        "file_counts": {**counts, "total": sum(counts.values())},
        "status": "in_progress" if stored.in_progress else "completed",
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
        "last_error": about.get("error"),
        "usage_bytes": stored.sealed_bytes,
        "attributes": about.get("attributes") or {},
        "filename": document.name,
        "pages": about.get("pages"),
        "notes": about.get("notes") or [],
    }).model_dump()  # fmt: skip


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
