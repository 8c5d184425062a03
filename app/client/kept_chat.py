"""Conversations that the service keeps for a user, as a client sees them: the list, their items, and changes of both.

All of it raises OpenAIError, as the library's own calls do. It knows nothing of how a chat is shown.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from openai import APIError, OpenAI, OpenAIError

from app.client import answers
from app.client.turns import Asking, Message, Pieces

_MOST_NEW_ITEMS = 20
"""In one request, as OpenAI allows."""
_MOST_LISTED = 30
_ITEMS_AT_ONCE = 100
_ROOT = "root"
"""In place of an item's id: nothing comes before."""
_CONFLICTS = 10
_CONFLICT_S = 0.3
"""An answer that was stopped ends at the service a moment later, which refuses changes until then."""
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
    """A conversation whose next turn can begin at once."""

    tokens: int
    remembered_tokens: int
    """Of them, those that need not be computed again."""


# --- conversations


def listed(client: OpenAI, count: int = _MOST_LISTED) -> list[Entry]:
    """Those that changed last come first."""
    found: Any = client.get(f"/conversations?limit={count}", cast_to=object)
    return [Entry(one["id"], one["title"], one["updated_at"]) for one in found["data"]]


def newest(client: OpenAI) -> str | None:
    """The id of the conversation that changed last."""
    found = listed(client, 1)
    return found[0].id if found else None


def begin(client: OpenAI, said: Sequence[Message]) -> str:
    """A new conversation, in which that was said before; returns its id."""
    conversation_id = client.conversations.create().id
    _add(client, conversation_id, said)
    return conversation_id


def rename(client: OpenAI, conversation_id: str, title: str) -> None:
    """What else its metadata says stays."""
    found: Any = client.get(_path(conversation_id), cast_to=object)
    client.post(_path(conversation_id), body={"metadata": {**found["metadata"], "title": title}}, cast_to=object)


def delete(client: OpenAI, conversation_id: str) -> None:
    """Its texts and its saved pages."""
    _when_closed(lambda: client.delete(_path(conversation_id), cast_to=object))


def exported(client: OpenAI, conversation_id: str, form: str) -> bytes:
    """A file of it; form: md or json."""
    return client.get(f"{_path(conversation_id)}/export?format={form}", cast_to=httpx.Response).content


def warm(client: OpenAI, conversation_id: str, model: str, instructions: str | None) -> Warmed:
    """Has the service bring the conversation's pages into memory, and waits for it."""
    body = {"conversation": conversation_id, "model": model, "instructions": instructions}
    answer: Any = client.post("/memory/warm", body=body, cast_to=object)
    return Warmed(answer["tokens"], answer["remembered_tokens"])


# --- what was said


def last_turns(client: OpenAI, conversation_id: str, count: int) -> list[Message]:
    """The last ones, in order."""
    return said(client, conversation_id)[-count:]


def answer(asking: Asking, conversation_id: str, question: str) -> Pieces:
    """The next turn."""
    events = _when_closed(lambda: _begun(answers.responded(asking, conversation_id, question)))
    yield from events


def answer_instead(asking: Asking, conversation_id: str, old_question: str, question: str) -> Pieces:
    """The last turn once more, with this question, if the last question was that one; else another turn.

    The old one stays: it is another branch.
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
    """All messages, in order."""
    return [message for message in map(_message, _items(client, conversation_id)) if message is not None]


def settle(client: OpenAI, conversation_id: str, wanted: Sequence[Message]) -> None:
    """Makes that what was said last: what is missing is added after what agrees, and what differs is another branch."""

    def settled() -> None:
        stored = _items(client, conversation_id)
        alike = last = 0  # of the messages; and what comes after the last of them
        # Thoughts and calls stand between the messages.
        places = [place for place, item in enumerate(stored) if _message(item) is not None]
        for place, message in zip(places, wanted, strict=False):
            if not _agree(stored[place], message):
                break
            alike, last = alike + 1, place + 1
        _add(client, conversation_id, wanted[alike:], _before(stored, last))

    _when_closed(settled)


# --- how it works


def _add(client: OpenAI, conversation_id: str, said: Sequence[Message], parent: str = _ROOT) -> None:
    """parent: the item that the first of them follows."""
    items = [{"type": "message", "role": one.role, "content": one.text} for one in said]
    for first in range(0, len(items), _MOST_NEW_ITEMS):
        body = {"items": items[first : first + _MOST_NEW_ITEMS], "parent": parent}
        added: Any = client.post(f"{_path(conversation_id)}/items", body=body, cast_to=object)
        parent = added["last_id"]


def _before(items: Sequence[dict[str, Any]], place: int) -> str:
    return str(items[place - 1]["id"]) if place else _ROOT


def _items(client: OpenAI, conversation_id: str) -> list[dict[str, Any]]:
    """The newest of its branches."""
    return newest_branch(_all_items(client, conversation_id))


def newest_branch(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest item and what leads to it. items: as they were stored; one follows its `parent`, or the one before."""
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
    """The same, after its request was accepted. Raises OpenAIError."""
    first = next(pieces)

    def all_of_it() -> Pieces:
        try:
            yield first
            yield from pieces
        finally:
            pieces.close()

    return all_of_it()


def _when_closed(change: Callable[[], Result]) -> Result:
    """Tries it again while the last turn has not ended at the service."""
    for _ in range(_CONFLICTS - 1):
        try:
            return change()
        except OpenAIError as error:
            if not (isinstance(error, APIError) and error.code == "conversation_conflict"):
                raise
        time.sleep(_CONFLICT_S)
    return change()


def _message(item: dict[str, Any]) -> Message | None:
    """None: it is something else."""
    if item["type"] != "message" or item["role"] not in ("user", "assistant"):
        return None
    return Message(item["role"], _text(item))


def _text(item: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in item.get("content", ()) if part.get("text"))


def _agree(item: dict[str, Any], message: Message) -> bool:
    stored = _message(item)
    return stored is not None and stored.role == message.role and stored.text.strip() == message.text.strip()


def _path(conversation_id: str) -> str:
    return f"/conversations/{quote(conversation_id, safe='')}"
