"""A client of conversations that the service keeps for a user: the list, their items, and changes.

All functions raise OpenAIError, as the library's own calls do. Knows nothing of how a chat is shown.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from openai import APIError, OpenAI, OpenAIError, omit

from app.client import answers, attached
from app.client.turns import Asking, File, Message, Pieces

_MOST_NEW_ITEMS = 20
"""The most items per request, as with OpenAI."""
_MOST_LISTED = 30
_ITEMS_AT_ONCE = 100
_ROOT = "root"
"""Stands for an item's id where nothing comes before."""
_CONFLICTS = 10
_CONFLICT_S = 0.3
"""How long to wait after a stopped answer, which the service ends a moment later and until then refuses changes."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation in the list."""

    id: str
    title: str
    updated_at: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """A conversation that is loaded, so that its next turn can begin at once."""

    tokens: int
    remembered_tokens: int
    """Tokens of it that need not be computed again."""


# --- conversations


def listed(client: OpenAI, count: int = _MOST_LISTED) -> list[Entry]:
    """Lists conversations, last changed first."""
    found: Any = client.get(f"/conversations?limit={count}", cast_to=object)
    return [Entry(one["id"], one["title"], one["updated_at"]) for one in found["data"]]


def newest(client: OpenAI) -> str | None:
    """The id of the most recently changed conversation."""
    found = listed(client, 1)
    return found[0].id if found else None


def begin(client: OpenAI, said: Sequence[Message], thinking: str | None = None) -> str:
    """Stores a new conversation with these messages; returns its id. thinking: how much the model thinks in it."""
    conversation_id = client.conversations.create(metadata={"thinking": thinking} if thinking else omit).id
    _add(client, conversation_id, said)
    return conversation_id


def rename(client: OpenAI, conversation_id: str, title: str) -> None:
    _note(client, conversation_id, title=title)


def thinking(client: OpenAI, conversation_id: str) -> str | None:
    """How much the model thinks in it: off, short or full; None: nobody has chosen."""
    found: Any = client.get(_path(conversation_id), cast_to=object)
    noted = found["metadata"].get("thinking")
    return str(noted) if noted in ("off", "short", "full") else None


def keep_thinking(client: OpenAI, conversation_id: str, mode: str) -> None:
    _note(client, conversation_id, thinking=mode)


def delete(client: OpenAI, conversation_id: str) -> None:
    """Deletes its texts and its saved pages."""
    _when_closed(lambda: client.delete(_path(conversation_id), cast_to=object))


def exported(client: OpenAI, conversation_id: str, form: str) -> bytes:
    """Exports it as a file. form: md or json."""
    return client.get(f"{_path(conversation_id)}/export?format={form}", cast_to=httpx.Response).content


def warm(client: OpenAI, conversation_id: str, model: str, instructions: str | None) -> Warmed:
    """Makes the service load the conversation's pages, and waits for it."""
    body = {"conversation": conversation_id, "model": model, "instructions": instructions}
    answer: Any = client.post("/memory/warm", body=body, cast_to=object)
    return Warmed(answer["tokens"], answer["remembered_tokens"])


# --- what was said


def last_turns(client: OpenAI, conversation_id: str, count: int) -> list[Message]:
    """Returns the last messages in order."""
    return said(client, conversation_id)[-count:]


def answer(asking: Asking, conversation_id: str, question: str) -> Pieces:
    """Streams the next turn's answer."""
    events = _when_closed(lambda: _begun(answers.responded(asking, conversation_id, question)))
    yield from events


def answer_instead(asking: Asking, conversation_id: str, old_question: str, question: str) -> Pieces:
    """Streams another answer for the last turn if its question was `old_question`, else for a new turn.

    The old turn stays as another branch.
    """

    def begun() -> Pieces:
        items = _items(asking.client, conversation_id)
        questions = [place for place, item in enumerate(items) if item.get("role") == "user"]
        parent = None
        if questions and _text(items[questions[-1]]).strip() == old_question.strip():
            parent = _before(items, questions[-1])
        return _begun(answers.responded(asking, conversation_id, question, parent))

    yield from _when_closed(begun)


def said(client: OpenAI, conversation_id: str) -> list[Message]:
    """Returns all messages in order."""
    return [message for message in map(_message, _items(client, conversation_id)) if message is not None]


def settle(client: OpenAI, conversation_id: str, wanted: Sequence[Message]) -> None:
    """Makes `wanted` the newest branch of a conversation.

    Appends missing messages after the common part; differing ones stay in another branch.
    """

    def settled() -> None:
        stored = _items(client, conversation_id)
        alike = last = 0  # number of equal messages, and the index after the last of them
        # Thoughts and calls stand between the messages.
        places = [place for place, item in enumerate(stored) if _message(item) is not None]
        for place, message in zip(places, wanted, strict=False):
            if not _agree(stored[place], message):
                break
            alike, last = alike + 1, place + 1
        _add(client, conversation_id, wanted[alike:], _before(stored, last))

    _when_closed(settled)


# --- how it works


def _note(client: OpenAI, conversation_id: str, **changes: str) -> None:
    """Changes these metadata and keeps the others."""
    found: Any = client.get(_path(conversation_id), cast_to=object)
    client.post(_path(conversation_id), body={"metadata": {**found["metadata"], **changes}}, cast_to=object)


def _add(client: OpenAI, conversation_id: str, said: Sequence[Message], parent: str = _ROOT) -> None:
    """Stores messages. parent: the item that the first of them follows."""
    items: list[Any] = [{"type": "message", "role": one.role, "content": _content(one)} for one in said]
    for first in range(0, len(items), _MOST_NEW_ITEMS):
        body = {"items": items[first : first + _MOST_NEW_ITEMS], "parent": parent}
        added: Any = client.post(f"{_path(conversation_id)}/items", body=body, cast_to=object)
        parent = added["last_id"]


def _before(items: Sequence[dict[str, Any]], place: int) -> str:
    return str(items[place - 1]["id"]) if place else _ROOT


def _items(client: OpenAI, conversation_id: str) -> list[dict[str, Any]]:
    """The items of the newest branch."""
    return newest_branch(_all_items(client, conversation_id))


def newest_branch(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the newest item and its ancestors. items: in stored order, each after its `parent` or the one before."""
    places = {item["id"]: place for place, item in enumerate(items)}
    branch: list[dict[str, Any]] = []
    place = len(items) - 1
    while place >= 0:
        branch.append(items[place])
        parent = items[place].get("parent")
        place = -1 if parent == _ROOT else min(places.get(parent, place - 1), place - 1)
    return branch[::-1]


def _all_items(client: OpenAI, conversation_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        query = f"order=asc&limit={_ITEMS_AT_ONCE}{after}"
        page: Any = client.get(f"{_path(conversation_id)}/items?{query}", cast_to=object)
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={quote(page['last_id'], safe='')}"


def _begun(pieces: Pieces) -> Pieces:
    """Waits until the request is accepted. Raises OpenAIError."""
    first = next(pieces)

    def all_of_it() -> Pieces:
        try:
            yield first
            yield from pieces
        finally:
            pieces.close()

    return all_of_it()


def _when_closed(change: Callable[[], Result]) -> Result:
    """Retries a change until the last turn has ended at the service."""
    for _ in range(_CONFLICTS - 1):
        try:
            return change()
        except OpenAIError as error:
            if not (isinstance(error, APIError) and error.code == "conversation_conflict"):
                raise
        time.sleep(_CONFLICT_S)
    return change()


def _message(item: dict[str, Any]) -> Message | None:
    """The item's message; None if it is no message."""
    if item["type"] != "message" or item["role"] not in ("user", "assistant"):
        return None
    files = [File(one["filename"], one["text"], one.get("pages")) for one in item["content"] if _is_file(one)]
    return Message(item["role"], _text(item), files)


def _content(message: Message) -> Any:
    return attached.parts(message.files, message.text, is_item=True) if message.files else message.text


def _text(item: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in item.get("content", ()) if part.get("text") and not _is_file(part))


def _is_file(part: dict[str, Any]) -> bool:
    return part.get("type") == "input_file"


def _agree(item: dict[str, Any], message: Message) -> bool:
    stored = _message(item)
    return stored is not None and stored.role == message.role and stored.text.strip() == message.text.strip()


def _path(conversation_id: str) -> str:
    return f"/conversations/{quote(conversation_id, safe='')}"
