"""A user's stored conversations and responses in plain text: sealed here before they go to the accounts, opened here.

Each record is sealed with its user's id, its kind and its own ids, so that none opens in place of another. Knows
neither HTTP nor how a request is question.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import orjson

from app.interface.request import errors
from app.interface.request.errors import ApiError
from app.messages.accounts import AccountsError, Identity
from app.messages.stored import ConversationStore, NewItem, StoredConversation, StoredItem, StoredResponse
from app.sealing.records import SealError, seal, unseal

MOST_ITEMS: Final = 2048
"""The accounts' limit of items per conversation."""
ROOT: Final = "root"
"""A parent id that means that no item comes before."""
_TITLE_CHARS: Final = 60
_LONG_BYTES: Final = 256 << 10
"""Texts of this size are handled in a thread."""

Item = dict[str, Any]
"""A message, function call or tool result as the API returns it, with its id."""
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation without its items."""

    id: str
    created: int
    """Unix seconds; so is `updated`."""
    updated: int
    items: int
    turn: int
    """The number of the running turn in the accounts."""
    metadata: dict[str, str] = field(repr=False)
    first_words: str = field(repr=False)
    """The beginning of the first question; empty before there is one."""
    response_id: str | None = None
    """The id of the answer that is being generated."""

    @property
    def title(self) -> str:
        """Returns the client's title, or else the beginning of the first question."""
        return self.metadata.get("title") or self.first_words


@dataclass(frozen=True, slots=True)
class Record:
    """An item as it is stored."""

    item: Item = field(repr=False)
    token_ids: list[int] = field(repr=False)
    """The token ids of a text answer generated here; otherwise empty."""
    parent: str | None
    """The id of the preceding item, or `ROOT`; None: the item that was stored before."""
    response: dict[str, Any] | None = field(default=None, repr=False)
    """Of an answer's last item: the response's id, model, end and tokens."""

    @property
    def shown(self) -> Item:
        """The item as the API returns it."""
        further = {"parent": self.parent, "response": self.response}
        return {**self.item, **{name: value for name, value in further.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class History:
    """The history of a turn, with the token ids of the model's answers."""

    items: list[Item] = field(default_factory=list, repr=False)
    answers: dict[str, list[int]] = field(default_factory=dict, repr=False)
    """Token ids by the answer's text."""


@dataclass(frozen=True, slots=True)
class Response:
    """A stored response and its input items."""

    id: str
    conversation_id: str | None
    input: list[Item] = field(repr=False)
    body: dict[str, Any] = field(repr=False)
    """A `ResponseObject`."""
    token_ids: list[int] = field(repr=False)
    """The answer's token ids if it is one text; otherwise empty."""
    is_open: bool = False
    """Whether it is still being written; then `body` is its state at the beginning."""


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response to be stored."""

    id: str
    body: dict[str, Any] = field(repr=False)
    """A `ResponseObject`."""
    question: Sequence[Item] = field(repr=False)
    """The input that it answers."""
    token_ids: list[int] = field(repr=False)
    """The answer's token ids if it is one text; otherwise empty."""
    previous_id: str | None
    conversation: Conversation | None
    """The conversation, if the response is a turn of one."""
    parent: str | None = None
    """The item that the first new item follows, if not the newest."""
    has_question: bool = False
    """Whether `question` is stored in the conversation already."""


class Texts:
    """The texts of a credential's user. Methods raise AccountsError, and ApiError (500) if a record is damaged."""

    def __init__(self, store: ConversationStore, identity: Identity, secret: str) -> None:
        self._store = store
        self._secret = secret
        self._key = identity.texts_key
        self._user_id = identity.user_id

    # --- conversations

    async def new(self, metadata: dict[str, str], items: Sequence[Item]) -> Conversation:
        """Creates a conversation of these items."""
        conversation_id = f"conv_{uuid.uuid4().hex}"
        sealed = self._sealed_metadata(conversation_id, metadata, first_words(items))
        made = await self._store.new_conversation(
            self._secret, conversation_id, sealed, self._sealed_items(conversation_id, items)
        )
        return self._conversation(made)

    async def newest(self, after: str | None, limit: int) -> list[Conversation]:
        """Returns conversations, last updated first."""
        return [self._conversation(one) for one in await self._store.conversations(self._secret, after, limit)]

    async def get(self, conversation_id: str) -> Conversation:
        return self._conversation(await self._store.conversation(self._secret, conversation_id))

    async def change(self, conversation: Conversation, metadata: dict[str, str]) -> Conversation:
        """Replaces the metadata."""
        return await self._change(conversation.id, metadata, conversation.first_words)

    async def restore(self, conversation_id: str) -> Conversation:
        """Undoes a deletion of some seconds ago."""
        return self._conversation(await self._store.restore_conversation(self._secret, conversation_id))

    async def begin_turn(self, conversation_id: str, response_id: str) -> Conversation:
        """Begins a turn for a response of this id, which locks the items until `end_turn` or `store`."""
        begun = await self._store.begin_turn(self._secret, conversation_id, response_id)
        try:
            return self._conversation(begun)
        except BaseException:  # the caller does not learn its number
            await self._store.end_turn(self._secret, conversation_id, begun.seq)
            raise

    async def end_turn(self, conversation: Conversation) -> None:
        """Ends the turn without storing anything."""
        await self._store.end_turn(self._secret, conversation.id, conversation.turn)

    # --- items

    async def items(
        self, conversation_id: str, *, after: str | None = None, limit: int = MOST_ITEMS, newest_first: bool = False
    ) -> list[Item]:
        """Returns items in order or newest first. after: the id of the item before the first one."""
        records = await self._records(conversation_id, after, limit, newest_first=newest_first)
        return [record.shown for record in records]

    async def branch(self, conversation_id: str, last: str | None = None) -> History:
        """Returns the history up to the item `last`; None: the newest; `ROOT`: empty. Raises ApiError (400)."""
        records = await self._records(conversation_id, None, MOST_ITEMS, newest_first=False)
        path = path_to(records, last)
        return History([one.item for one in path], {text_of(one.item): one.token_ids for one in path if one.token_ids})

    async def item(self, conversation_id: str, item_id: str) -> Item:
        return self._item(conversation_id, await self._store.item(self._secret, conversation_id, item_id)).shown

    async def add(self, conversation_id: str, items: Sequence[Item], parent: str | None = None) -> None:
        """Appends items. parent: the item that the first one follows, if not the newest; or `ROOT`."""
        if parent not in (None, ROOT):
            await self.item(conversation_id, str(parent))
        sealed = self._sealed_items(conversation_id, items, parent=parent)
        await self._name(self._conversation(await self._store.add_items(self._secret, conversation_id, sealed)), items)

    async def delete_item(self, conversation_id: str, item_id: str) -> Conversation:
        """Returns the conversation without the item."""
        return self._conversation(await self._store.delete_item(self._secret, conversation_id, item_id))

    # --- responses

    async def store_open(self, response: NewResponse) -> None:
        """Stores a response that is going to be written. It is open until `store`."""
        await self._store.begin_response(self._secret, self._sealed_response(response, is_open=True))
        if response.conversation is not None:
            await self._name(response.conversation, response.question)

    async def add_question(
        self, conversation: Conversation, question: Sequence[Item], parent: str | None
    ) -> Conversation:
        """Stores the question of a running turn; returns the conversation with the turn's new number."""
        items = self._sealed_items(conversation.id, question, parent=parent)
        added = await self._store.add_question(self._secret, conversation.id, items, conversation.turn)
        return replace(conversation, turn=added.seq)

    async def store(self, response: NewResponse, *, was_open: bool = False) -> None:
        """Stores a response with its question; in a conversation both become its last items, and the turn ends.

        was_open: `store_open` has stored it; if it was deleted since, raises `not_found`.
        """
        stored, conversation = self._sealed_response(response, is_open=was_open), response.conversation
        if conversation is None:
            await self._store.store_response(self._secret, stored, (), None)
            return
        items = []
        if not response.has_question:
            items = self._sealed_items(conversation.id, response.question, parent=response.parent)
        items += self._sealed_items(
            conversation.id, response.body["output"], response.token_ids, response=_told_of(response.body)
        )
        await self._store.store_response(self._secret, stored, items, conversation.turn)
        await self._name(conversation, response.question)

    async def response(self, response_id: str) -> Response:
        return self._response(await self._store.response(self._secret, response_id))

    async def delete_response(self, response_id: str) -> None:
        await self._store.delete_response(self._secret, response_id)

    async def history(self, response_id: str) -> History:
        """Returns the history up to and including a response, with the responses before it."""
        stored = await self._store.history(self._secret, response_id)
        if stored[-1].is_open:
            raise errors.invalid("This response has not ended yet.", "previous_response_id", "invalid_value")
        size = sum(len(one.sealed_input) + len(one.sealed_response) for one in stored)
        responses = await off_loop(size, lambda: [self._response(one) for one in stored])
        items = [item for one in responses for item in (*one.input, *one.body["output"])]
        answers = {text_of(one.body["output"][0]): one.token_ids for one in responses if one.token_ids}
        return History(items, answers)

    # --- internals

    async def _name(self, conversation: Conversation, items: Sequence[Item]) -> None:
        """Stores the beginning of the first question, once there is one.

        An AccountsError is ignored, and the next question is used: the items are stored and must not be sent again.
        """
        if conversation.first_words or not (words := first_words(items)):
            return
        with suppress(AccountsError):
            now = await self.get(conversation.id)  # its metadata may have changed during the turn
            if not now.first_words:
                await self._change(now.id, now.metadata, words)

    async def _change(self, conversation_id: str, metadata: dict[str, str], words: str) -> Conversation:
        sealed = self._sealed_metadata(conversation_id, metadata, words)
        return self._conversation(await self._store.change_conversation(self._secret, conversation_id, sealed))

    def _sealed_metadata(self, conversation_id: str, metadata: dict[str, str], words: str) -> bytes:
        return self._seal({"metadata": metadata, "first_words": words}, f"conversation {conversation_id}")

    def _conversation(self, stored: StoredConversation) -> Conversation:
        opened = self._open(stored.sealed, f"conversation {stored.id}")
        return Conversation(
            id=stored.id,
            created=stored.created,
            updated=stored.updated,
            items=stored.items,
            turn=stored.seq,
            metadata=opened["metadata"],
            first_words=opened["first_words"],
            response_id=stored.response_id,
        )

    async def _records(
        self, conversation_id: str, after: str | None, limit: int, *, newest_first: bool
    ) -> list[Record]:
        stored = await self._store.items(
            self._secret, conversation_id, after=after, limit=limit, newest_first=newest_first
        )
        size = sum(len(item.sealed) for item in stored)
        return await off_loop(size, lambda: [self._item(conversation_id, item) for item in stored])

    def _sealed_items(
        self,
        conversation_id: str,
        items: Sequence[Item],
        token_ids: Sequence[int] = (),
        parent: str | None = None,
        response: dict[str, Any] | None = None,
    ) -> list[NewItem]:
        """token_ids: of the only item; empty if unknown. parent: of the first item. response: of the last one."""
        sealed = []
        for place, item in enumerate(items):
            record: dict[str, Any] = {"item": item, "token_ids": token_ids}
            if parent is not None and place == 0:
                record["parent"] = parent
            if response is not None and place == len(items) - 1:
                record["response"] = response
            sealed.append(NewItem(item["id"], self._seal(record, f"item {conversation_id} {item['id']}")))
        return sealed

    def _item(self, conversation_id: str, stored: StoredItem) -> Record:
        record = self._open(stored.sealed, f"item {conversation_id} {stored.id}")
        return Record(record["item"], record["token_ids"], record.get("parent"), record.get("response"))

    def _response(self, stored: StoredResponse) -> Response:
        record = self._open(stored.sealed_response, f"response {stored.id}")
        return Response(
            id=stored.id,
            conversation_id=stored.conversation_id,
            input=self._open(stored.sealed_input, f"input {stored.id}"),
            body=record["body"],
            token_ids=record["token_ids"],
            is_open=stored.is_open,
        )

    def _sealed_response(self, response: NewResponse, *, is_open: bool) -> StoredResponse:
        record = {"body": response.body, "token_ids": response.token_ids}
        return StoredResponse(
            id=response.id,
            created=0,
            conversation_id=None if response.conversation is None else response.conversation.id,
            previous_id=response.previous_id,
            sealed_input=self._seal(list(response.question), f"input {response.id}"),
            sealed_response=self._seal(record, f"response {response.id}"),
            is_open=is_open,
        )

    def _seal(self, value: object, what: str) -> bytes:
        return seal(self._key, orjson.dumps(value), f"{self._user_id} {what}")

    def _open(self, sealed: bytes, what: str) -> Any:
        try:
            return orjson.loads(unseal(self._key, sealed, f"{self._user_id} {what}"))
        except SealError:
            raise damaged(what) from None


def path_to(records: Sequence[Record], last: str | None) -> list[Record]:
    """Returns the branch that ends with the item `last` (None: the newest; `ROOT`: none). Raises ApiError (400).

    An item whose parent was deleted follows the item stored before it.
    """
    places = {record.item["id"]: place for place, record in enumerate(records)}
    if last not in (None, ROOT) and last not in places:
        raise errors.invalid("There is no such item in the conversation.", "conversation.parent", "invalid_value")
    place = -1 if last == ROOT else len(records) - 1 if last is None else places[last]
    path = []
    while place >= 0:
        record = records[place]
        path.append(record)
        # A parent must be older, so cycles can't occur.
        parent = -1 if record.parent == ROOT else places.get(record.parent or "", place)
        place = parent if parent < place else place - 1
    return path[::-1]


def _told_of(body: dict[str, Any]) -> dict[str, Any]:
    """Returns what a conversation's item tells of the response that it ends."""
    names = ("id", "model", "status", "incomplete_details", "usage", "context")
    return {name: body[name] for name in names if body.get(name) is not None}


def damaged(what: str) -> ApiError:
    """500: the database was tampered with. what: the kind and ids of the record."""
    errors.logger.error("a stored record does not open: %s", what)
    return ApiError(500, f"A stored record does not open: {what}.", type="server_error", code="stored_record_damaged")


def first_words(items: Sequence[Item]) -> str:
    """Returns the beginning of the first question on one line; empty without one."""
    text = next((text_of(item) for item in items if item.get("role") == "user"), "")
    words = " ".join(text[: 8 * _TITLE_CHARS].split())
    return words if len(words) <= _TITLE_CHARS else words[: _TITLE_CHARS - 1].rstrip() + "…"


def text_of(item: Item) -> str:
    """Returns the text of a message or thought, the arguments of a call, or a tool's result; of a file its name."""
    content = _content_of(item)
    if isinstance(content, str):
        return content
    texts = [part.get("text", "") for part in content if part.get("type") != "input_file"]
    return "\n".join([*texts, *(part["filename"] for part in content if part.get("type") == "input_file")])


def searched_texts(item: Item) -> Iterator[str]:
    """Yields what a search looks into: the text, and what was read of files."""
    yield text_of(item)
    content = _content_of(item)
    if not isinstance(content, str):
        yield from (part.get("text", "") for part in content if part.get("type") == "input_file")


def size_of(items: Iterable[Item]) -> int:
    """Returns the approximate number of characters of the items' texts, quickly."""
    return sum(_length(_content_of(item)) for item in items)


async def off_loop(size: int, work: Callable[[], Made]) -> Made:
    """Runs work on texts of `size` bytes; long ones in a thread, so that streams continue."""
    return work() if size < _LONG_BYTES else await asyncio.to_thread(work)


def _content_of(item: Item) -> Any:
    return next((item[name] for name in ("content", "output", "arguments", "input") if item.get(name) is not None), "")


def _length(content: Any) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)
