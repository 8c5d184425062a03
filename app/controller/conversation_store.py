"""The ingress' client of stored conversations and responses.

Texts are sealed, because Ray may spill large ones to disk.
"""

from collections.abc import Sequence

from app.controller.accounts_handle import AccountsHandle
from app.messages.accounts import Forgotten
from app.messages.stored import NewItem, StoredConversation, StoredItem, StoredResponse


class ServeConversationStore(AccountsHandle):
    """Implements `app.messages.stored.ConversationStore`, which documents the methods, over a Serve handle."""

    async def new_conversation(
        self, secret: str, conversation_id: str, sealed: bytes, items: Sequence[NewItem]
    ) -> StoredConversation:
        return await self._call(StoredConversation, "new_conversation", secret, conversation_id, sealed, items)

    async def conversations(self, secret: str, after: str | None, limit: int) -> Sequence[StoredConversation]:
        return await self._call(list[StoredConversation], "conversations", secret, after, limit)

    async def conversation(self, secret: str, conversation_id: str) -> StoredConversation:
        return await self._call(StoredConversation, "conversation", secret, conversation_id)

    async def change_conversation(self, secret: str, conversation_id: str, sealed: bytes) -> StoredConversation:
        return await self._call(StoredConversation, "change_conversation", secret, conversation_id, sealed)

    async def delete_conversation(self, secret: str, conversation_id: str | None, *, undo: bool = False) -> Forgotten:
        return await self._call(Forgotten, "delete_conversation", secret, conversation_id, undo)

    async def restore_conversation(self, secret: str, conversation_id: str) -> StoredConversation:
        return await self._call(StoredConversation, "restore_conversation", secret, conversation_id)

    async def items(
        self, secret: str, conversation_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredItem]:
        return await self._call(list[StoredItem], "items", secret, conversation_id, after, limit, newest_first)

    async def item(self, secret: str, conversation_id: str, item_id: str) -> StoredItem:
        return await self._call(StoredItem, "item", secret, conversation_id, item_id)

    async def add_items(self, secret: str, conversation_id: str, items: Sequence[NewItem]) -> StoredConversation:
        return await self._call(StoredConversation, "add_items", secret, conversation_id, items)

    async def delete_item(self, secret: str, conversation_id: str, item_id: str) -> StoredConversation:
        return await self._call(StoredConversation, "delete_item", secret, conversation_id, item_id)

    async def begin_turn(self, secret: str, conversation_id: str, response_id: str) -> StoredConversation:
        return await self._call(StoredConversation, "begin_turn", self._ingress, secret, conversation_id, response_id)

    async def add_question(
        self, secret: str, conversation_id: str, items: Sequence[NewItem], turn: int
    ) -> StoredConversation:
        return await self._call(StoredConversation, "add_question", secret, conversation_id, items, turn)

    async def end_turn(self, secret: str, conversation_id: str, turn: int) -> None:
        await self._call(object, "end_turn", secret, conversation_id, turn)

    async def begin_response(self, secret: str, response: StoredResponse) -> None:
        await self._call(object, "begin_response", self._ingress, secret, response)

    async def store_response(
        self, secret: str, response: StoredResponse, items: Sequence[NewItem], turn: int | None
    ) -> None:
        await self._call(object, "store_response", secret, response, items, turn)

    async def response(self, secret: str, response_id: str) -> StoredResponse:
        return await self._call(StoredResponse, "response", secret, response_id)

    async def history(self, secret: str, response_id: str) -> Sequence[StoredResponse]:
        return await self._call(list[StoredResponse], "history", secret, response_id)

    async def delete_response(self, secret: str, response_id: str) -> None:
        await self._call(object, "delete_response", secret, response_id)
