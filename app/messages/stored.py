"""Stored conversations and responses, as messages between an ingress and the accounts. Frozen and picklable.

The ingress seals every text under a key of the user's before it hands it over: the accounts and Ray see ids, sizes,
times and order, and no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.messages.accounts import Forgotten


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation without its items."""

    id: str
    """`conv_` and 32 hex digits; it is also the conversation's name, as `AccountsClient.conversation_key` takes it."""
    created: int
    """Unix seconds; so is `updated`."""
    updated: int
    """When an item came or went, or `sealed` changed."""
    items: int
    seq: int
    """Grows with every change of its items and every turn that begins. `begin_turn` returns the turn's number in it."""
    sealed: bytes = field(repr=False)
    """Its sealed metadata, with the title."""
    response_id: str | None = None
    """Id of the response that is being generated in it."""


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to append to a conversation."""

    id: str
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of a conversation."""

    id: str
    seq: int
    """Orders the items; there may be gaps."""
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with the input that it answers."""

    id: str
    created: int
    """Unix seconds."""
    conversation_id: str | None
    previous_id: str | None
    """Id of the response that it continues."""
    sealed_input: bytes = field(repr=False)
    """The sealed items of its request."""
    sealed_response: bytes = field(repr=False)
    is_open: bool = False
    """Whether an ingress is still writing it; then the sealed parts are those at its start.

    Passed to `store_response`: whether `begin_response` has stored it, so that it must exist.
    """


class ConversationStore(Protocol):
    """The ingress' interface to users' stored texts.

    Every method raises AccountsError; `secret` is a key or session token, and ids of other users are `not_found`.
    `conversation_conflict`: a turn of the conversation is running, so nothing else may change its items.
    """

    async def new_conversation(
        self, secret: str, conversation_id: str, sealed: bytes, items: Sequence[NewItem]
    ) -> StoredConversation:
        """Adds a conversation. Refuses with `insufficient_quota` when the user has too many, or too much."""

    async def conversations(self, secret: str, after: str | None, limit: int) -> Sequence[StoredConversation]:
        """Lists conversations, last updated first. after: the id of the one before the first."""

    async def conversation(self, secret: str, conversation_id: str) -> StoredConversation: ...

    async def change_conversation(self, secret: str, conversation_id: str, sealed: bytes) -> StoredConversation:
        """Replaces its metadata."""

    async def delete_conversation(self, secret: str, conversation_id: str | None, *, undo: bool = False) -> Forgotten:
        """Deletes a conversation, its responses and the key of its saved pages.

        With None: all conversations and responses of the user, and the keys of all of the user's saved pages. undo: the
        conversation is only hidden for some seconds, without its key, and `restore_conversation` brings it back. The
        accounts or the user's logout end that time.
        """

    async def restore_conversation(self, secret: str, conversation_id: str) -> StoredConversation:
        """Brings back a hidden conversation. Refuses with `not_found` if it is not hidden, or no more."""

    async def items(
        self, secret: str, conversation_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredItem]:
        """Lists items in order, or newest first. after: the id of the one before the first in that order."""

    async def item(self, secret: str, conversation_id: str, item_id: str) -> StoredItem: ...

    async def add_items(self, secret: str, conversation_id: str, items: Sequence[NewItem]) -> StoredConversation:
        """Appends items.

        Refuses with `conversation_conflict`, and with `insufficient_quota` when there are too many.
        """

    async def delete_item(self, secret: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Deletes an item. Refuses with `conversation_conflict`."""

    async def begin_turn(self, secret: str, conversation_id: str, response_id: str) -> StoredConversation:
        """Begins a turn for a response of this id.

        Nobody else can change the conversation's items until `end_turn` or `store_response`. Refuses with
        `conversation_conflict`. After an hour another turn may begin; then nothing of this one is stored.
        """

    async def add_question(
        self, secret: str, conversation_id: str, items: Sequence[NewItem], turn: int
    ) -> StoredConversation:
        """Stores the items that a turn answers before it has ended. Afterwards the turn's number is the new `seq`.

        Refuses as `store_response` does.
        """

    async def end_turn(self, secret: str, conversation_id: str, turn: int) -> None:
        """Ends a failed turn without storing anything. turn: `seq` as returned by `begin_turn`.

        Needs the credential that began it, which may have expired meanwhile. Idempotent.
        """

    async def begin_response(self, secret: str, response: StoredResponse) -> None:
        """Stores a response that this ingress is going to write; it is open until `store_response`.

        If the ingress ends before, the response stays as it is, no longer open. Refuses as `store_response` does.
        """

    async def store_response(
        self, secret: str, response: StoredResponse, items: Sequence[NewItem], turn: int | None
    ) -> None:
        """Stores a response and appends `items` to its conversation, in one step. The turn ends, refused or not.

        Replaces what `begin_response` has stored.

        turn: `seq` as returned by `begin_turn`; None: the response is in no conversation, and `items` is empty. The
        accounts set `created`. Refuses with `conversation_conflict` when the conversation's items have changed or
        another turn has begun since (the accounts may have started again), `not_found` when the conversation was
        deleted, and `insufficient_quota`.
        """

    async def response(self, secret: str, response_id: str) -> StoredResponse: ...

    async def history(self, secret: str, response_id: str) -> Sequence[StoredResponse]:
        """Returns a response and those that it continues, oldest first; at most the newest 2,048.

        The list begins after the last deleted one.
        """

    async def delete_response(self, secret: str, response_id: str) -> None:
        """Deletes a response. Those that continue it lose what was before; items in a conversation stay."""
