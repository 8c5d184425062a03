"""The tools of `/v1/messages`: pydantic models that only validate.

Tools that Anthropic's servers run, or whose schema only Anthropic's models know, are accepted and ignored, since
clients offer them to every service. It knows no model and no HTTP.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from app.interface.wire.fields import Dropped, FunctionName, Shallow, Wire, only
from app.interface.wire.message_blocks import block_kind


class ClientTool(Wire):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    input_schema: Annotated[dict[str, Any], Shallow()]
    strict: bool | None = None
    input_examples: Annotated[list[Annotated[dict[str, Any], Shallow()]], Field(max_length=64)] | None = None
    allowed_callers: Annotated[Any, only(["direct"])] = None
    cache_control: Dropped = None
    defer_loading: bool | None = None
    """Without effect, like the next: the model sees every tool at once, and arguments stream as they are made."""
    eager_input_streaming: bool | None = None


_HOSTED: Final = re.compile(
    r"(advisor|bash|browser_toolset|code_execution|computer|computer_toolset|mcp_toolset|memory|text_editor"
    r"|tool_search_tool_(bm25|regex)|web_fetch|web_search)(_[0-9]{8})?"
)


class AnthropicTool(Wire):
    """A tool that is ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Annotated[str, Field(pattern=f"^{_HOSTED.pattern}$")]


def _tool_kind(value: object) -> str | None:
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    kind = "custom" if given is None else block_kind(value)
    if kind == "custom":
        return "client tool"
    return "hosted tool" if kind is not None and _HOSTED.fullmatch(kind) else None


MessagesTool = Annotated[
    Annotated[ClientTool, Tag("client tool")] | Annotated[AnthropicTool, Tag("hosted tool")],
    Discriminator(
        _tool_kind,
        custom_error_type="unsupported",
        custom_error_message="is not supported; only tools of type custom are, which is the default",
    ),
]


class _Choice(Wire):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Choice):
    """The model decides."""

    type: Literal["auto"]


class AnyChoice(_Choice):
    """One of the tools must be called."""

    type: Literal["any"]


class ToolChoiceByName(_Choice):
    """The tool that must be called."""

    type: Literal["tool"]
    name: FunctionName


class NoChoice(_Choice):
    """No tool may be called."""

    type: Literal["none"]


def _choice_kind(value: object) -> str | None:
    kind = block_kind(value)
    return f"{kind} choice" if kind in ("auto", "any", "tool", "none") else None


MessagesToolChoice = Annotated[
    Annotated[AutoChoice, Tag("auto choice")]
    | Annotated[AnyChoice, Tag("any choice")]
    | Annotated[ToolChoiceByName, Tag("tool choice")]
    | Annotated[NoChoice, Tag("none choice")],
    Discriminator(
        _choice_kind,
        custom_error_type="wrong_type",
        custom_error_message='should be an object whose type is "auto", "any", "tool" or "none"',
    ),
]
