"""Stored conversations and responses, as an ingress and the accounts hand them to each other. Frozen and picklable.

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
    """Grows with every change of its items and with every turn that begins. `begin_turn` answers the turn's own."""
    sealed: bytes = field(repr=False)
    """Its metadata, title included."""
    response_id: str | None = None
    """Of the response that is being made in it now."""


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item that is to be stored at the end of a conversation."""

    id: str
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of a conversation."""

    id: str
    seq: int
    """Items are in the order of these numbers; there may be gaps."""
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with what it answers."""

    id: str
    created: int
    """Unix seconds."""
    conversation_id: str | None
    previous_id: str | None
    """The response that it goes on from."""
    sealed_input: bytes = field(repr=False)
    """The items of its request."""
    sealed_response: bytes = field(repr=False)
    is_open: bool = False
    """Whether an ingress is still writing it: what is sealed is how it was when it began.

    To `store_response`: whether `begin_response` has stored it, so that it must be there.
    """


class ConversationStore(Protocol):
    """What is stored of users' texts, as an ingress calls it.

    Every method raises AccountsError; `secret` is a key or session token, and ids of other users are `not_found`.
    `conversation_conflict`: a turn of the conversation is running, so nothing else may change its items.
    """

    async def new_conversation(
        self, secret: str, conversation_id: str, sealed: bytes, items: Sequence[NewItem]
    ) -> StoredConversation:
        """Refuses with `insufficient_quota` when the user has too many, or too much."""

    async def conversations(self, secret: str, after: str | None, limit: int) -> Sequence[StoredConversation]:
        """Those updated last come first. after: the id of the one before the first."""

    async def conversation(self, secret: str, conversation_id: str) -> StoredConversation:
        """One of them."""

    async def change_conversation(self, secret: str, conversation_id: str, sealed: bytes) -> StoredConversation:
        """Replaces its metadata."""

    async def delete_conversation(self, secret: str, conversation_id: str | None, *, undo: bool = False) -> Forgotten:
        """Deletes a conversation, its responses and the key of its saved pages.

        With None: all conversations and responses of the user, and the keys of all of the user's saved pages. undo: for
        some seconds one is hidden only, without its key; `restore_conversation` brings it back. The accounts end that
        time themselves, and the user's logout ends it at once.
        """

    async def restore_conversation(self, secret: str, conversation_id: str) -> StoredConversation:
        """Refuses with `not_found` what is not hidden, or no more."""

    async def items(
        self, secret: str, conversation_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredItem]:
        """Items in order, or the other way round. after: the id of the one before the first in that order."""

    async def item(self, secret: str, conversation_id: str, item_id: str) -> StoredItem:
        """One of them."""

    async def add_items(self, secret: str, conversation_id: str, items: Sequence[NewItem]) -> StoredConversation:
        """At the end. Refuses with `conversation_conflict`, and with `insufficient_quota` when there are too many."""

    async def delete_item(self, secret: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Refuses with `conversation_conflict`."""

    async def begin_turn(self, secret: str, conversation_id: str, response_id: str) -> StoredConversation:
        """For a response of this id: nobody else changes its items until `end_turn` or `store_response`.

        Refuses with `conversation_conflict`.
        After an hour another turn may begin all the same; then nothing of this one is stored.
        """

    async def add_question(
        self, secret: str, conversation_id: str, items: Sequence[NewItem], turn: int
    ) -> StoredConversation:
        """Stores the items that a turn answers before it has ended. From then on the turn's number is the new `seq`.

        Refuses as `store_response` does.
        """

    async def end_turn(self, secret: str, conversation_id: str, turn: int) -> None:
        """The turn has failed or was given up: nothing is stored of it. turn: `seq` of what `begin_turn` answered.

        Needs the credential that began it, which may have ended meanwhile. A turn that has ended may end again.
        """

    async def begin_response(self, secret: str, response: StoredResponse) -> None:
        """Stores a response that this ingress is going to write: until `store_response` it is open.

        If the ingress ends before, it stays as it is, and is open no more. Refuses as `store_response` does.
        """

    async def store_response(
        self, secret: str, response: StoredResponse, items: Sequence[NewItem], turn: int | None
    ) -> None:
        """Stores a response, and in one step `items` at the end of its conversation. The turn ends, refused or not.

        It takes the place of what `begin_response` has stored of it.

        turn: `seq` of what `begin_turn` answered; None: the response is in no conversation, and `items` is empty.
        `created` is the accounts' to say. Refuses with `conversation_conflict` when the conversation's items have
        changed or another turn has begun since (the accounts may have started again), `not_found` when the
        conversation was deleted, and `insufficient_quota`.
        """

    async def response(self, secret: str, response_id: str) -> StoredResponse:
        """One of the user's."""

    async def history(self, secret: str, response_id: str) -> Sequence[StoredResponse]:
        """A response and those that it goes on from, the oldest first; the newest 2,048 at most.

        It begins after the last one that was deleted.
        """

    async def delete_response(self, secret: str, response_id: str) -> None:
        """Those that go on from it lose what was before; items in a conversation stay."""
