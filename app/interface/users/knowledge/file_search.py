"""The tool `file_search` of a response: the collections are searched for the question before the model answers."""

import uuid
from collections.abc import Sequence

from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.users.knowledge.sealed import Collections
from app.interface.users.knowledge.searching import KnowledgeSearch
from app.interface.wire.response_items import InputMessage
from app.interface.wire.response_tools import FileSearchTool
from app.interface.wire.responses import FoundPassage, OutputFileSearch, ResponseRequest
from app.messages.accounts import AccountsError
from app.messages.knowledge import CollectionStore

USUAL_RESULTS = 6
_MOST_QUESTION_CHARACTERS = 2000


class FileSearch:
    """Searches for the responses of one ingress."""

    def __init__(self, store: CollectionStore, search: KnowledgeSearch) -> None:
        self._store = store
        self._search = search

    async def searched(self, request: ResponseRequest, caller: Caller) -> OutputFileSearch | None:
        """Searches if the request has the tool and a question; request: with its history.

        Raises ApiError (400, 404), AccountsError, EngineError.
        """
        tool = tool_of(request)
        questions = _questions(request)
        if tool is None or not questions or caller.identity is None:
            return None
        collections = Collections(self._store, caller.identity, caller.secret)
        results = list[FoundPassage]()
        try:
            hits = await self._search.search(
                caller,
                collections,
                tool.vector_store_ids,
                questions,
                tool.max_num_results or USUAL_RESULTS,
                filters=tool.filters,
                ranking=tool.ranking_options,
            )
        except AccountsError as error:
            if error.refusal.code != "not_found":
                raise
            field = "tools.vector_store_ids"
            raise errors.invalid("'tools': there is no such collection.", field, "invalid_value") from None
        for hit in hits:
            passage, document = hit.passage, hit.document
            results.append(
                FoundPassage(
                    file_id=document.file_id,
                    filename=document.name,
                    score=hit.score,
                    text=passage.text,
                    attributes=dict(document.attributes),
                    page=passage.page,
                    heading=passage.heading,
                )
            )
        return OutputFileSearch(id=f"fs_{uuid.uuid4().hex}", queries=questions, results=results)


def tool_of(request: ResponseRequest) -> FileSearchTool | None:
    """Returns the request's search; None if it has none, or chooses no tool. Raises ApiError (400) for several."""
    tools = [tool for tool in request.tools or () if isinstance(tool, FileSearchTool)]
    if len(tools) > 1:
        raise errors.invalid("'tools': there is more than one file_search: give one with all ids.", "tools")
    return tools[0] if tools and request.tool_choice != "none" else None


def _questions(request: ResponseRequest) -> list[str]:
    """Returns what to search for: the question, and the question with the one before, which it may refer to."""
    if isinstance(request.input, str):
        return [request.input[:_MOST_QUESTION_CHARACTERS]]
    users = [item for item in request.input if isinstance(item, InputMessage) and item.role == "user"]
    if not users or users[-1] is not _last_message(request.input):
        return []
    texts = [text for text in (_text(item)[:_MOST_QUESTION_CHARACTERS].strip() for item in users[-2:]) if text]
    return [texts[-1], "\n".join(texts)] if len(texts) > 1 else texts


def _last_message(items: Sequence[object]) -> object:
    return next((item for item in reversed(items) if isinstance(item, InputMessage)), None)


def _text(message: InputMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content if part.type == "input_text")
