"""The tool `file_search` of a response: the collections are searched for the question before the model answers.

Few documents are read whole instead, before the first question and in the same order whatever is asked: so every
further question about them begins as the first one did, and its KV pages are there.
"""

import uuid
from collections.abc import Sequence

from app.interface.functions.response_tools import file_search_of
from app.interface.generate.answers.early import Early
from app.interface.generate.planning.found_room import most_that_fit, room_tokens
from app.interface.generate.planning.passages import whole_documents
from app.interface.generate.planning.responses import found_before, question_place, shown_text
from app.interface.generate.reception import Reception
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.users.knowledge.sealed import Collections
from app.interface.users.knowledge.searching import MOST_QUESTION_CHARACTERS, KnowledgeSearch
from app.interface.wire.response_items import MOST_WHOLE, InputMessage
from app.interface.wire.response_tools import FileSearchTool
from app.interface.wire.responses import FoundPassage, OutputFileSearch, ResponseRequest
from app.knowledge.index import OpenDocument
from app.knowledge.passages import Passage, without_overlap
from app.messages.accounts import AccountsError
from app.messages.knowledge import CollectionStore

USUAL_RESULTS = 6
_CONTEXT_SHARE = 2
"""Documents that are read whole take at most this part of the context, together with the question and its files."""


class FileSearch:
    """Searches for the responses of one ingress."""

    def __init__(self, store: CollectionStore, search: KnowledgeSearch, reception: Reception) -> None:
        self._store = store
        self._search = search
        self._reception = reception

    async def searched(
        self, request: ResponseRequest, caller: Caller, early: Early | None = None
    ) -> OutputFileSearch | None:
        """Searches if the request has the tool and a question; request: with its history. early: is told of it.

        Raises ApiError (400, 404), AccountsError, EngineError.
        """
        tool = file_search_of(request.tools, request.tool_choice)
        questions = _questions(request)
        if tool is None or not questions or caller.identity is None or found_before(request) is not None:
            return None
        search_id = f"fs_{uuid.uuid4().hex}"
        if early is not None:
            early.searching(search_id)
        collections = Collections(self._store, caller.identity, caller.secret)
        try:
            documents = await self._search.documents(caller, collections, tool.vector_store_ids, tool.filters)
        except AccountsError as error:
            if error.refusal.code != "not_found":
                raise
            field = "tools.vector_store_ids"
            message = "There is no such collection: it was deleted, or it is not shared with you any more."
            raise errors.invalid(message, field, "invalid_value") from None

        model = self._reception.service.model(request.model).chat
        limits = self._reception.service.limits
        room = await self._reception.in_thread(lambda: room_tokens(model, request, limits))
        if (whole := await self._whole(request, tool, documents, room)) is not None:
            return OutputFileSearch(id=search_id, queries=[], results=whole, whole=True, unread=documents.unread)
        most = tool.max_num_results or USUAL_RESULTS
        hits = await self._search.search(caller, documents, questions, most, tool.ranking_options)
        results = [_found(hit.document, hit.passage, hit.score) for hit in hits]
        fitting = await self._reception.in_thread(lambda: most_that_fit(model, results, room))
        unread = documents.unread
        return OutputFileSearch(id=search_id, queries=questions, results=results[:fitting], unread=unread)

    async def _whole(
        self,
        request: ResponseRequest,
        tool: FileSearchTool,
        documents: Sequence[OpenDocument],
        room: int,
    ) -> list[FoundPassage] | None:
        """Returns all of the documents; None: they are too many or too long, or the request says how to search.

        room: see `room_tokens`.
        """
        if tool.max_num_results is not None or tool.ranking_options is not None:
            return None
        if not 0 < sum(len(one.passages) for one in documents) <= MOST_WHOLE:
            return None
        found = [_found(one, passage, 1.0) for one in documents for passage in without_overlap(one.passages)]
        model = self._reception.service.model(request.model).chat
        shown = whole_documents(found)
        asked = f"{shown}{_asked(request)}"

        def fits() -> bool:
            most = model.context_tokens // _CONTEXT_SHARE
            return model.question_tokens(asked) <= most and model.question_tokens(shown) <= room

        return found if await self._reception.in_thread(fits) else None


def _found(document: OpenDocument, passage: Passage, score: float) -> FoundPassage:
    return FoundPassage(
        file_id=document.file_id,
        filename=document.name,
        score=score,
        text=passage.text,
        attributes=dict(document.attributes),
        vector_store_id=document.collection_id,
        page=passage.page,
        heading=passage.heading,
    )


def _asked(request: ResponseRequest) -> str:
    """Returns the question with its files, as the model sees it."""
    if isinstance(request.input, str):
        return request.input
    place = question_place(request.input)
    message = None if place is None else request.input[place]
    return shown_text(message.content) if isinstance(message, InputMessage) else ""


def _questions(request: ResponseRequest) -> list[str]:
    """Returns what to search for: the question, and the question with the one before, which it may refer to."""
    if isinstance(request.input, str):
        return [request.input[:MOST_QUESTION_CHARACTERS]]
    if question_place(request.input) is None:
        return []
    users = [item for item in request.input if isinstance(item, InputMessage) and item.role == "user"]
    texts = [text for text in (_text(item)[:MOST_QUESTION_CHARACTERS].strip() for item in users[-2:]) if text]
    both = "\n".join(text[: MOST_QUESTION_CHARACTERS // 2 - 1] for text in texts)
    return [texts[-1], both] if len(texts) > 1 else texts


def _text(message: InputMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content if part.type == "input_text")
