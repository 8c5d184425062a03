"""`tools` and `tool_choice` of a response: pydantic models that only validate.

Functions, custom tools (whose input is text), namespaces of both, and the search in collections. Tools that only
OpenAI's servers can run are accepted and ignored, since clients offer them to every service. It knows no model
and no HTTP.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from app.interface.wire.custom_tools import CustomFormat, CustomGrammar
from app.interface.wire.fields import MAX_TOOLS, FunctionName, Identifier, Shallow, Unsupported, Wire, only
from app.interface.wire.vector_stores import MOST_RESULTS, Filter, RankingOptions

_MOST_COLLECTIONS = 16
_Description = Annotated[str, StringConstraints(max_length=65536)]


class _Callable(Wire):
    """The fields of functions and custom tools."""

    name: FunctionName
    description: _Description | None = None
    defer_loading: bool | None = None
    """Without effect: the model sees every tool at once."""
    allowed_callers: Annotated[Any, only(["direct"])] = None
    async_: Annotated[bool | None, only(False), Field(alias="async")] = None


class FunctionTool(_Callable):
    """A function."""

    type: Literal["function"]
    parameters: Annotated[dict[str, Any] | None, Shallow()] = None
    strict: bool | None = None
    output_schema: Unsupported = None


class CustomTool(_Callable):
    """A tool whose input is text."""

    type: Literal["custom"]
    format: CustomFormat | None = None

    @property
    def grammar(self) -> CustomGrammar | None:
        return self.format.grammar if self.format is not None else None


def _type_of(value: object) -> object:
    """Returns the type, from a request's object or from the model made of it, which is being serialized.

    Tags of the unions are no words that a client may have as keys: errors name places by keys alone.
    """
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def _kind(value: object) -> str | None:
    kind = _type_of(value)
    return f"{kind} tool" if isinstance(kind, str) and kind in ("function", "custom") else None


NamespacedTool = Annotated[
    Annotated[FunctionTool, Tag("function tool")] | Annotated[CustomTool, Tag("custom tool")],
    Discriminator(
        _kind,
        custom_error_type="unsupported",
        custom_error_message="is not supported; only tools of type function and custom are in a namespace",
    ),
]


class NamespaceTool(Wire):
    """Tools that belong together."""

    type: Literal["namespace"]
    name: FunctionName
    description: _Description | None = None
    tools: Annotated[list[NamespacedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


HostedType = Literal[
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "image_generation",
    "code_interpreter",
    "mcp",
    "computer",
    "computer_use_preview",
    "programmatic_tool_calling",
    "tool_search",
    "local_shell",
    "shell",
    "apply_patch",
]
"""Tools that OpenAI's servers run, or that a client runs in a form only OpenAI's models were trained on."""
_HOSTED: tuple[str, ...] = get_args(HostedType)


class FileSearchTool(Wire):
    """The search in collections of documents, before the answer."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[list[Identifier], Field(min_length=1, max_length=_MOST_COLLECTIONS)]
    max_num_results: Annotated[int, Field(ge=1, le=MOST_RESULTS)] | None = None
    filters: Filter | None = None
    ranking_options: RankingOptions | None = None


class HostedTool(Wire):
    """A tool that is ignored."""

    model_config = ConfigDict(extra="ignore")

    type: HostedType


def _tool_kind(value: object) -> str | None:
    kind = _type_of(value)
    if not isinstance(kind, str):
        return None
    if kind in _HOSTED:
        return "hosted tool"
    return f"{kind} tool" if kind in ("function", "custom", "namespace", "file_search") else None


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("function tool")]
    | Annotated[CustomTool, Tag("custom tool")]
    | Annotated[NamespaceTool, Tag("namespace tool")]
    | Annotated[FileSearchTool, Tag("file_search tool")]
    | Annotated[HostedTool, Tag("hosted tool")],
    Discriminator(
        _tool_kind,
        custom_error_type="unsupported",
        custom_error_message="is not supported; only tools of type function, custom, namespace and file_search are",
    ),
]


class NamedToolChoice(Wire):
    """`tool_choice` of one tool, or an entry of `allowed_tools`."""

    type: Literal["function", "custom"]
    name: FunctionName


class FileSearchChoice(Wire):
    """`tool_choice` of the search, or an entry of `allowed_tools`. The search always comes before the answer."""

    type: Literal["file_search"]


_CHOICES = {"function": "named choice", "custom": "named choice", "file_search": "search choice"}
AllowedTool = Annotated[
    Annotated[NamedToolChoice, Tag("named choice")] | Annotated[FileSearchChoice, Tag("search choice")],
    Discriminator(
        lambda value: _CHOICES.get(str(_type_of(value))),
        custom_error_type="unsupported",
        custom_error_message="is not supported; only a function, a custom tool and file_search are",
    ),
]


class AllowedTools(Wire):
    """`tool_choice` of some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "mode"
    kind = _type_of(value)
    return ({**_CHOICES, "allowed_tools": "allowed"}).get(kind) if isinstance(kind, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedToolChoice, Tag("named choice")]
    | Annotated[FileSearchChoice, Tag("search choice")]
    | Annotated[AllowedTools, Tag("allowed")],
    Discriminator(
        _choice_kind,
        custom_error_type="unsupported",
        custom_error_message='is not supported; only "none", "auto", "required", a function, a custom tool, '
        "file_search and allowed_tools of those are",
    ),
]
