"""The messages of `/v1/messages`, Anthropic's API, and their blocks: pydantic models that only validate.

Clients return answers as they got them, from this service or another: what only Anthropic's servers know (signatures,
encrypted thoughts, records of tools that they ran) is accepted without effect. It knows no tools, no model and no HTTP.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from app.interface.wire.fields import Dropped, Identifier, Shallow, Text, Wire, kind_of, only

MAX_BLOCKS: Final = 65536
"""Of one message, or of one tool's result."""
_BLOCKS: Final = "should be a string or a list of blocks"


def block_kind(value: object) -> str | None:
    """Returns the type, from a request's object or from the model made of it, which is being serialized."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else None


class _Block(Wire):
    """The field of all blocks."""

    cache_control: Dropped = None
    """Without effect: the prefix cache needs no marks."""


class TextBlock(_Block):
    """Text of the user, of the system prompt, or of an earlier answer."""

    type: Literal["text"]
    text: Text
    citations: Dropped = None


Texts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True), Tag("blocks")],
    kind_of("should be a string or a list of text blocks", {str: "text", list: "blocks"}),
]


class CitationsConfig(Wire):
    """`citations`: no served model cites."""

    enabled: Annotated[bool | None, only(False)] = None


class PlainText(Wire):
    """A document as text."""

    type: Literal["text"]
    data: Text
    media_type: Literal["text/plain"] | None = None


class BlocksOfText(Wire):
    """A document as text, or as blocks of text."""

    type: Literal["content"]
    content: Texts


class Base64Data(Wire):
    """A document's bytes."""

    type: Literal["base64"]
    data: Text
    media_type: Annotated[str, Field(max_length=256)] | None = None
    """Without effect: the bytes say what they are."""


class StoredSource(Wire):
    """A file of `/v1/files` with purpose user_data."""

    type: Literal["file"]
    file_id: Identifier


_DOCUMENT_SOURCES: Final = ("text", "content", "base64", "file")


def _source_kind(value: object) -> str | None:
    kind = block_kind(value)
    return f"{kind} source" if kind in _DOCUMENT_SOURCES else None


class DocumentBlock(_Block):
    """A document."""

    type: Literal["document"]
    source: Annotated[
        Annotated[PlainText, Tag("text source")]
        | Annotated[BlocksOfText, Tag("content source")]
        | Annotated[Base64Data, Tag("base64 source")]
        | Annotated[StoredSource, Tag("file source")],
        Discriminator(
            _source_kind,
            custom_error_type="unsupported",
            custom_error_message="is not supported; only sources of type text, content, base64 and file are: "
            "the service fetches nothing",
        ),
    ]
    title: Text | None = None
    context: Text | None = None
    citations: CitationsConfig | None = None

    @property
    def is_read(self) -> bool:
        return isinstance(self.source, PlainText | BlocksOfText)

    @property
    def filename(self) -> str | None:
        return self.title

    @property
    def file_data(self) -> str | None:
        return self.source.data if isinstance(self.source, Base64Data) else None

    @property
    def file_id(self) -> str | None:
        return self.source.file_id if isinstance(self.source, StoredSource) else None

    def read_as(self, name: str, text: str, pages: int | None) -> None:
        """Puts what was read in the place of the bytes."""
        object.__setattr__(self, "title", name)
        object.__setattr__(self, "source", PlainText(type="text", data=text))


class SearchResultBlock(_Block):
    """Something found, by the client's own search."""

    type: Literal["search_result"]
    source: Text
    title: Text
    content: Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]
    citations: CitationsConfig | None = None


class ToolReferenceBlock(_Block):
    """A tool found by the client's own search of its tools."""

    type: Literal["tool_reference"]
    tool_name: Identifier


class ThinkingBlock(_Block):
    """The assistant's thought."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None
    """Has the thought itself if the client asked not to see it; another service's has no effect."""


class RedactedThinkingBlock(_Block):
    """A thought that only another service can read; without effect."""

    type: Literal["redacted_thinking"]
    data: Text


class ToolUseBlock(_Block):
    """A call that the assistant made in an earlier turn."""

    type: Literal["tool_use"]
    id: Identifier
    name: Identifier
    input: Annotated[dict[str, Any], Shallow()]
    caller: Dropped = None
    toolset_name: Dropped = None


_RESULTS: Final = ("text", "document", "search_result", "tool_reference")


def _result_kind(value: object) -> str | None:
    kind = block_kind(value)
    return f"{kind} result" if kind in _RESULTS else None


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("text result")]
    | Annotated[DocumentBlock, Tag("document result")]
    | Annotated[SearchResultBlock, Tag("search_result result")]
    | Annotated[ToolReferenceBlock, Tag("tool_reference result")],
    Discriminator(
        _result_kind,
        custom_error_type="unsupported",
        custom_error_message=f"is not supported; only blocks of type {', '.join(_RESULTS)} are in a result",
    ),
]


class ToolResultBlock(_Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: Identifier
    content: (
        Annotated[
            Annotated[Text, Tag("text")]
            | Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS, fail_fast=True), Tag("blocks")],
            kind_of(_BLOCKS, {str: "text", list: "blocks"}),
        ]
        | None
    ) = None
    is_error: bool | None = None
    toolset_name: Dropped = None


class ServerToolBlock(Wire):
    """A record of a tool that another service ran in an earlier turn; nothing in it is for the model."""

    model_config = ConfigDict(extra="ignore")

    type: Annotated[str, Field(pattern=r"^(server_tool_use|mcp_tool_use|[a-z_]+_tool_result)$")]


_HONOURED: Final = (
    "text",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
)
_OF_SERVERS: Final = re.compile(r"server_tool_use|mcp_tool_use|[a-z_]+_tool_result")


def _content_kind(value: object) -> str | None:
    kind = block_kind(value)
    if kind is None or kind in _HONOURED:
        return kind and f"{kind} block"
    return "server block" if _OF_SERVERS.fullmatch(kind) else None


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("text block")]
    | Annotated[DocumentBlock, Tag("document block")]
    | Annotated[SearchResultBlock, Tag("search_result block")]
    | Annotated[ThinkingBlock, Tag("thinking block")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking block")]
    | Annotated[ToolUseBlock, Tag("tool_use block")]
    | Annotated[ToolResultBlock, Tag("tool_result block")]
    | Annotated[ServerToolBlock, Tag("server block")],
    Discriminator(
        _content_kind,
        custom_error_type="unsupported",
        custom_error_message=f"is not supported; only blocks of type {', '.join(_HONOURED)} are: no model here "
        "sees images",
    ),
]


class InputTurn(Wire):
    """An entry of `messages`. Consecutive ones of a role are one turn."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[Text, Tag("text")]
        | Annotated[list[ContentBlock], Field(max_length=MAX_BLOCKS, fail_fast=True), Tag("blocks")],
        kind_of(_BLOCKS, {str: "text", list: "blocks"}),
    ]
