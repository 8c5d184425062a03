"""`/v1/conversations`: users' stored conversations as in OpenAI's API, and a list, search and export.

Texts are opened by `app.interface.users.texts`; a search reads them in memory only.
"""

import asyncio
from collections.abc import Sequence
from itertools import chain

from fastapi import Request
from fastapi.responses import Response

from app.interface.documents.conversation import as_markdown
from app.interface.generate.attached import AttachedFiles
from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.body import read_body
from app.interface.request.callers import caller_of
from app.interface.request.streaming import until_disconnect
from app.interface.users.gate import AccountsGate
from app.interface.users.items import items_of
from app.interface.users.kv_pages import AllForgotten
from app.interface.users.routes.listing import BEFORE, list_query, listed
from app.interface.users.routes.users import id_of, texts_of, user_of
from app.interface.users.texts import Conversation, Item, Texts, off_loop, searched_texts, size_of
from app.interface.wire.conversations import (
    ConversationChangeRequest,
    ConversationObject,
    ConversationRequest,
    DeletedConversation,
    DeletedConversations,
    ExportedConversation,
    ItemsRequest,
)
from app.interface.wire.parse import Request as Body
from app.interface.wire.parse import parse
from app.messages.accounts import Forgotten, Identity

_MOST_SEARCHED = 1000
"""The limit of conversations whose texts one search reads, last updated first."""
_SEARCHED_AT_ONCE = 100
_PASSAGE_BEFORE_CHARS = 24
_PASSAGE_CHARS = 100
_MOST_SEARCHES = 2
"""The limit of concurrent searches; each may read all stored texts of its user."""


class ConversationRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate, max_body_bytes: int, files: AttachedFiles) -> None:
        """files: reads the files in items."""
        self._gate = gate
        self._files = files
        self._max_body_bytes = max_body_bytes
        self._searches = asyncio.Semaphore(_MOST_SEARCHES)

    # --- conversations

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        body = await self._body(request, ConversationRequest)
        await self._files.read_all(body, caller_of(request))
        made = await texts_of(self._gate, request).new(body.metadata or {}, items_of(body.items or []))
        return json_response(_shown(made))

    async def conversations(self, request: Request) -> Response:
        """`GET /v1/conversations?after=&limit=&q=`: q is searched in titles and texts, ignoring case."""
        query = list_query(request, "q")
        texts = texts_of(self._gate, request)
        words = request.query_params.get("q", "").casefold().strip()
        if words:
            async with self._searches:
                found = await until_disconnect(request.receive, _search(texts, query.after, query.limit + 1, words))
        else:
            found = [(one, None) for one in await texts.newest(query.after, query.limit + 1)]
        return json_response(listed([_shown(one, passage) for one, passage in found], query.limit))

    async def conversation(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`."""
        return json_response(_shown(await texts_of(self._gate, request).get(id_of(request))))

    async def change(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}`."""
        body = await self._body(request, ConversationChangeRequest)
        texts = texts_of(self._gate, request)
        return json_response(_shown(await texts.change(await texts.get(id_of(request)), body.metadata)))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}?undo=true`: deletes texts, responses, the key and the files of saved KV pages.

        undo: the texts are only hidden for some seconds.
        """
        undo = request.query_params.get("undo", "false")
        if undo not in ("true", "false") or request.query_params.keys() - {"undo"}:
            raise errors.invalid("The only parameter is 'undo': true or false.", "undo", "invalid_value")
        caller, identity = user_of(request)
        deleting = self._delete(caller.secret, identity, id_of(request), undo=undo == "true")
        _, removed = await self._gate.to_the_end(deleting)
        deleted = DeletedConversation(id=id_of(request), unacknowledged=removed.unacknowledged)
        return json_response(deleted.model_dump())

    async def delete_all(self, request: Request) -> Response:
        """`DELETE /v1/conversations`: deletes all texts of the user, and all keys and files of saved KV pages."""
        if request.query_params:
            raise errors.invalid("There are no parameters: all conversations are deleted.", code="unknown_parameter")
        caller, identity = user_of(request)
        forgotten, removed = await self._gate.to_the_end(self._delete(caller.secret, identity, None))
        deleted = DeletedConversations(
            conversations=forgotten.conversations, files=removed.files, unacknowledged=removed.unacknowledged
        )
        return json_response(deleted.model_dump())

    async def restore(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/restore`: undoes a deletion with `undo` of some seconds ago."""
        return json_response(_shown(await texts_of(self._gate, request).restore(id_of(request))))

    async def export(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/export?format=md|json`: returns a file to download."""
        form = request.query_params.get("format", "json")
        if form not in ("md", "json") or request.query_params.keys() - {"format"}:
            raise errors.invalid("The only parameter is 'format': md or json.", "format", "invalid_value")
        texts = texts_of(self._gate, request)
        one = await texts.get(id_of(request))
        items = await texts.items(one.id) if form == "json" else (await texts.branch(one.id)).items
        response = await off_loop(size_of(items), lambda: _exported(one, items, form))
        response.headers["Content-Disposition"] = f'attachment; filename="{one.id}.{form}"'
        return response

    # --- items

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`."""
        query = list_query(request, BEFORE)
        found = await texts_of(self._gate, request).items(
            id_of(request), after=query.after, limit=query.limit + 1, newest_first=query.newest_first
        )
        return json_response(query.listed(found))

    async def add_items(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/items`."""
        body = await self._body(request, ItemsRequest)
        await self._files.read_all(body, caller_of(request))
        items = items_of(body.items)
        await texts_of(self._gate, request).add(id_of(request), items, body.parent)
        return json_response(listed(items, len(items)))

    async def item(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items/{item_id}`."""
        return json_response(await texts_of(self._gate, request).item(id_of(request), request.path_params["item_id"]))

    async def delete_item(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/items/{item_id}`: returns the conversation."""
        texts = texts_of(self._gate, request)
        return json_response(_shown(await texts.delete_item(id_of(request), request.path_params["item_id"])))

    # --- internals

    async def _delete(
        self, secret: str, identity: Identity, conversation_id: str | None, *, undo: bool = False
    ) -> tuple[Forgotten, AllForgotten]:
        await self._gate.running.cancel_all(identity.user_id, conversation_id)
        forgotten = await self._gate.stored.delete_conversation(secret, conversation_id, undo=undo)
        return forgotten, await self._gate.forget_destroyed(identity, forgotten)

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        return parse(kind, await read_body(request, self._max_body_bytes))


def _exported(one: Conversation, items: Sequence[Item], form: str) -> Response:
    if form == "md":
        return Response(as_markdown(one.title, one.created, items), media_type="text/markdown")
    exported = ExportedConversation(
        id=one.id,
        title=one.title,
        created_at=one.created,
        updated_at=one.updated,
        metadata=one.metadata,
        items=[],
    )
    return json_response({**exported.model_dump(), "items": items})  # a model would copy the items


async def _search(texts: Texts, after: str | None, limit: int, words: str) -> list[tuple[Conversation, str | None]]:
    """Returns conversations with the passage that has the words; None: the title has them."""
    found: list[tuple[Conversation, str | None]] = []
    for _ in range(_MOST_SEARCHED // _SEARCHED_AT_ONCE):
        batch = await texts.newest(after, _SEARCHED_AT_ONCE)
        for one in batch:
            passage = None
            if words not in one.title.casefold():
                passage = await _passage(await texts.items(one.id), words)
                if passage is None:
                    continue
            found.append((one, passage))
            if len(found) == limit:
                return found
        if len(batch) < _SEARCHED_AT_ONCE:
            break
        after = batch[-1].id
    return found


async def _passage(items: Sequence[Item], words: str) -> str | None:
    return await off_loop(size_of(items), lambda: passage_of(items, words))


def passage_of(items: Sequence[Item], words: str) -> str | None:
    """Returns the text around casefolded words, on one line; None: no item has them."""
    for text in chain.from_iterable(map(searched_texts, items)):
        folded = text.casefold()
        place = folded.find(words)
        if place < 0:
            continue
        if len(folded) != len(text):  # folding made some characters two: the place is near enough
            place = place * len(text) // len(folded)
        start, end = max(0, place - _PASSAGE_BEFORE_CHARS), place + _PASSAGE_CHARS
        line = " ".join(text[start:end].split())
        return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
    return None


def _shown(one: Conversation, passage: str | None = None) -> dict[str, object]:
    return ConversationObject(
        id=one.id,
        created_at=one.created,
        updated_at=one.updated,
        metadata=one.metadata,
        title=one.title,
        items=one.items,
        response_id=one.response_id,
        passage=passage,
    ).model_dump()
