"""The types of `/v1/conversations`, as in OpenAI's API. Times are Unix seconds."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.interface.wire.fields import Identifier, Metadata, Wire
from app.interface.wire.response_items import InputItem

MOST_NEW_ITEMS = 20
"""OpenAI's limit."""
NewItems = Annotated[list[InputItem], Field(max_length=MOST_NEW_ITEMS, fail_fast=True)]


class ConversationRequest(Wire):
    """`POST /v1/conversations`."""

    items: NewItems | None = None
    metadata: Metadata | None = None
    """`title` is the conversation's name."""


class ConversationChangeRequest(Wire):
    """`POST /v1/conversations/{id}`."""

    metadata: Metadata
    """Replaces the previous metadata."""


class ItemsRequest(Wire):
    """`POST /v1/conversations/{id}/items`."""

    items: Annotated[NewItems, Field(min_length=1)]
    parent: Identifier | None = None
    """Extension: the item that the first one follows, which makes a branch; `root`: none. Default: the newest item."""


class ConversationObject(BaseModel):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]
    updated_at: int
    """Extension: when items or metadata last changed."""
    title: str
    """Extension: `metadata.title`, or else the beginning of the first question."""
    items: int
    """Extension: the number of items."""
    response_id: str | None = None
    """Extension: the id of the response that is being generated in it."""
    passage: str | None = None
    """Extension, in a search: the text around what was found; null if the title has it."""


class ConversationList(BaseModel):
    """`GET /v1/conversations`, an extension: last updated first."""

    object: Literal["list"] = "list"
    data: list[ConversationObject]
    first_id: str
    last_id: str
    """Empty, like `first_id`, if the list is empty."""
    has_more: bool


class DeletedConversation(BaseModel):
    """`DELETE /v1/conversations/{id}`."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True
    unacknowledged: int
    """Extension: workers that did not answer; they may still have its KV pages, which nobody can open."""


class DeletedConversations(BaseModel):
    """`DELETE /v1/conversations`, an extension: deletes all texts and all saved KV pages of the user."""

    object: Literal["conversations.deleted"] = "conversations.deleted"
    conversations: int
    files: int
    """Files of saved KV pages that were removed."""
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
