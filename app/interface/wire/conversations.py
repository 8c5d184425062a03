"""`/v1/conversations`: what clients send and read, as OpenAI has it. Times are Unix seconds."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.interface.wire.fields import Identifier, Metadata, Wire
from app.interface.wire.response_items import InputItem

MOST_NEW_ITEMS = 20
"""As OpenAI allows."""
NewItems = Annotated[list[InputItem], Field(max_length=MOST_NEW_ITEMS, fail_fast=True)]


class ConversationRequest(Wire):
    """`POST /v1/conversations`."""

    items: NewItems | None = None
    metadata: Metadata | None = None
    """Its `title` is the conversation's name."""


class ConversationChangeRequest(Wire):
    """`POST /v1/conversations/{id}`."""

    metadata: Metadata
    """Replaces what was there."""


class ItemsRequest(Wire):
    """`POST /v1/conversations/{id}/items`."""

    items: Annotated[NewItems, Field(min_length=1)]
    parent: Identifier | None = None
    """Extension: the item that the first one follows, which makes a branch; `root`: nothing comes before. By default
    the newest item."""


class ConversationObject(BaseModel):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]
    updated_at: int
    """Extension: when an item came or went, or the metadata changed."""
    title: str
    """Extension: `metadata.title`, or else how the first question begins."""
    items: int
    """Extension: how many there are."""
    response_id: str | None = None
    """Extension: of the response that is being written in it now."""


class ConversationList(BaseModel):
    """`GET /v1/conversations`, an extension: those that changed last come first."""

    object: Literal["list"] = "list"
    data: list[ConversationObject]
    first_id: str
    last_id: str
    """Empty, as `first_id`, where there is none."""
    has_more: bool


class DeletedConversation(BaseModel):
    """`DELETE /v1/conversations/{id}`."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True
    unacknowledged: int
    """Extension: workers that did not answer, which may have pages of it that nobody can open."""


class DeletedConversations(BaseModel):
    """`DELETE /v1/conversations`, an extension: all texts and all saved pages of the user are gone."""

    object: Literal["conversations.deleted"] = "conversations.deleted"
    conversations: int
    files: int
    """Of saved pages."""
    unacknowledged: int


class ItemList(BaseModel):
    """Items of a conversation, or of a response's input."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class DeletedResponse(BaseModel):
    """`DELETE /v1/responses/{id}`."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ExportedConversation(BaseModel):
    """`GET /v1/conversations/{id}/export?format=json`."""

    object: Literal["conversation.export"] = "conversation.export"
    id: str
    title: str
    created_at: int
    updated_at: int
    metadata: dict[str, str]
    items: list[dict[str, Any]]
