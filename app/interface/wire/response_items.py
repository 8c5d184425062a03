"""The items of a response's `input` and of conversations: pydantic models that only validate.

Clients return answers as they got them, from this service or another: what only an answer has (ids, states, log
probabilities) is accepted without effect. It knows no tools, no model and no HTTP.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Discriminator, Field, Tag

from app.interface.wire.attached import InputFilePart, part_of
from app.interface.wire.fields import Dropped, Identifier, Shallow, Text, Unsupported, Wire, kind_of, only

_PARTS = "should be a string or a list of parts"
_Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Wire):
    """A part of a message's content or of a tool's result: text of the user, or of an earlier answer."""

    type: Annotated[Literal["input_text", "output_text"], only("input_text", "output_text")]
    text: Text
    annotations: Dropped = None
    logprobs: Annotated[Any, Shallow()] = None
    """Part of a returned answer; without effect."""
    parsed: Dropped = None
    prompt_cache_breakpoint: Unsupported = None


InputPart = Annotated[
    Annotated[InputTextPart, Tag("a text")] | Annotated[InputFilePart, Tag("a file")], part_of("input_file")
]
TextOrParts = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[InputPart], Field(fail_fast=True), Tag("parts")],
    kind_of(_PARTS, {str: "text", list: "parts"}),
]


class _Item(Wire):
    """The fields of all items."""

    id: Identifier | None = None
    status: _Status | None = None
    created_by: Dropped = None
    internal_chat_message_metadata_passthrough: Dropped = None
    """Codex's note of an item's turn."""


class InputMessage(_Item):
    """A message: a new one, or a returned answer."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: TextOrParts
    phase: Literal["commentary", "final_answer"] | None = None
    """Part of a returned answer; without effect."""


class _ToolItem(_Item):
    """The fields of calls and their results."""

    call_id: Identifier
    caller: Dropped = None
    async_: Annotated[bool | None, only(False), Field(alias="async")] = None


class FunctionCallItem(_ToolItem):
    """A call that the assistant made in an earlier turn."""

    type: Literal["function_call"]
    name: Identifier
    namespace: Identifier | None = None
    arguments: Text
    parsed_arguments: Dropped = None


class _ToolOutputItem(_ToolItem):
    """The result of a tool."""

    name: Dropped = None
    namespace: Dropped = None
    output: TextOrParts


class FunctionCallOutputItem(_ToolOutputItem):
    """The result of a function."""

    type: Literal["function_call_output"]


class CustomToolCallItem(_ToolItem):
    """A call of a custom tool in an earlier turn."""

    type: Literal["custom_tool_call"]
    name: Identifier
    namespace: Identifier | None = None
    input: Text


class CustomToolCallOutputItem(_ToolOutputItem):
    """The result of a custom tool."""

    type: Literal["custom_tool_call_output"]


class ThoughtPart(Wire):
    """A part of a thought."""

    type: Literal["reasoning_text", "text"]
    text: Text


class SummaryPart(Wire):
    """A part of a thought's summary."""

    type: Literal["summary_text"]
    text: Text


class ReasoningItem(_Item):
    """The assistant's thought before its answer or calls."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryPart], Field(fail_fast=True)] | None = None
    content: Annotated[list[ThoughtPart], Field(fail_fast=True)] | None = None
    encrypted_content: Text | None = None
    """Encrypted by another service, which alone can read it; without effect."""
    cut: Dropped = None

    @property
    def thought(self) -> str:
        """The thought, or else its summary; empty if only another service can read it."""
        parts: list[ThoughtPart] | list[SummaryPart] = self.content or self.summary or []
        return "\n".join(part.text for part in parts)


MOST_WHOLE = 64
"""The most passages of documents that are read whole: about 12,000 tokens."""


class FoundPassageItem(Wire):
    """A passage that an earlier search found."""

    model_config = ConfigDict(extra="ignore")

    file_id: Identifier
    filename: Annotated[str, Field(max_length=512)] = ""
    score: float = 0.0
    text: Text
    page: int | None = None
    heading: Annotated[str, Field(max_length=512)] = ""


class FileSearchCallItem(Wire):
    """A search in collections before an earlier answer. Without results nothing of it is for the model."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["file_search_call"]
    id: Identifier | None = None
    results: Annotated[list[FoundPassageItem], Field(max_length=MOST_WHOLE, fail_fast=True)] | None = None
    whole: bool = False


class PresentSearchItem(FileSearchCallItem):
    """The search before the answer to this request, behind the question. The service adds it: no client sends one."""


HostedCall = Literal[
    "web_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "mcp_list_tools",
    "mcp_call",
]


class HostedCallItem(Wire):
    """A record of a tool that another service ran in an earlier turn; nothing in it is for the model."""

    model_config = ConfigDict(extra="ignore")

    type: HostedCall


_HOSTED: tuple[str, ...] = get_args(HostedCall)
_HONOURED = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "file_search_call",
)


def _item_kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else 0
    if kind is None:
        return "message"
    if not isinstance(kind, str):
        return None
    return "hosted" if kind in _HOSTED else kind if kind in _HONOURED else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[CustomToolCallItem, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FileSearchCallItem, Tag("file_search_call")]
    | Annotated[HostedCallItem, Tag("hosted")],
    Discriminator(
        _item_kind,
        custom_error_type="unsupported",
        custom_error_message=f"is not supported; only items of type {', '.join(_HONOURED)} are",
    ),
]
