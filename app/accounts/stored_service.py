"""The part of the accounts service that stores conversations and responses. Methods return Refusals.

Texts are sealed and opened by the ingress.
"""

from collections.abc import Sequence

from app.accounts.answering import Answering
from app.messages.accounts import Forgotten, Refusal
from app.messages.stored import NewItem, StoredConversation, StoredItem, StoredResponse


class StoredService(Answering):
    """The methods do what `app.messages.stored.ConversationStore` says."""

    async def new_conversation(
        self, secret: str, conversation_id: str, sealed: bytes, items: Sequence[NewItem]
    ) -> StoredConversation | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(lambda: stored.new(secret, conversation_id, sealed, items))

    async def conversations(self, secret: str, after: str | None, limit: int) -> Sequence[StoredConversation] | Refusal:
        return await self._answer(lambda: self._accounts.stored_conversations.newest(secret, after, limit))

    async def conversation(self, secret: str, conversation_id: str) -> StoredConversation | Refusal:
        return await self._answer(lambda: self._accounts.stored_conversations.get(secret, conversation_id))

    async def change_conversation(
        self, secret: str, conversation_id: str, sealed: bytes
    ) -> StoredConversation | Refusal:
        return await self._answer(lambda: self._accounts.stored_conversations.change(secret, conversation_id, sealed))

    async def delete_conversation(
        self, secret: str, conversation_id: str | None, undo: bool = False
    ) -> Forgotten | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(lambda: stored.delete(secret, conversation_id, undo=undo))

    async def restore_conversation(self, secret: str, conversation_id: str) -> StoredConversation | Refusal:
        return await self._answer(lambda: self._accounts.stored_conversations.restore(secret, conversation_id))

    async def items(
        self, secret: str, conversation_id: str, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredItem] | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(
            lambda: stored.items(secret, conversation_id, after, limit, newest_first=newest_first)
        )

    async def item(self, secret: str, conversation_id: str, item_id: str) -> StoredItem | Refusal:
        return await self._answer(lambda: self._accounts.stored_conversations.item(secret, conversation_id, item_id))

    async def add_items(
        self, secret: str, conversation_id: str, items: Sequence[NewItem]
    ) -> StoredConversation | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(lambda: stored.add_items(secret, conversation_id, items))

    async def delete_item(self, secret: str, conversation_id: str, item_id: str) -> StoredConversation | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(lambda: stored.delete_item(secret, conversation_id, item_id))

    async def begin_turn(
        self, ingress: str, secret: str, conversation_id: str, response_id: str
    ) -> StoredConversation | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(
            lambda: stored.begin_turn(secret, ingress, conversation_id, response_id),
            undo=lambda begun: stored.end_turn(secret, conversation_id, begun.seq),
        )

    async def add_question(
        self, secret: str, conversation_id: str, items: Sequence[NewItem], turn: int
    ) -> StoredConversation | Refusal:
        stored = self._accounts.stored_conversations
        return await self._answer(lambda: stored.add_question(secret, conversation_id, items, turn))

    async def end_turn(self, secret: str, conversation_id: str, turn: int) -> Refusal | None:
        stored = self._accounts.stored_conversations
        return await self._answer(lambda: stored.end_turn(secret, conversation_id, turn))

    async def begin_response(self, ingress: str, secret: str, response: StoredResponse) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_responses.open(secret, ingress, response))

    async def store_response(
        self, secret: str, response: StoredResponse, items: Sequence[NewItem], turn: int | None
    ) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_responses.add(secret, response, items, turn))

    async def response(self, secret: str, response_id: str) -> StoredResponse | Refusal:
        return await self._answer(lambda: self._accounts.stored_responses.get(secret, response_id))

    async def history(self, secret: str, response_id: str) -> Sequence[StoredResponse] | Refusal:
        return await self._answer(lambda: self._accounts.stored_responses.history(secret, response_id))

    async def delete_response(self, secret: str, response_id: str) -> Refusal | None:
        return await self._answer(lambda: self._accounts.stored_responses.delete(secret, response_id))
