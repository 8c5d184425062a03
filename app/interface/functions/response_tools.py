"""Converts the tools of a response request to functions for the model, and calls back to the client's tools.

A function of a namespace is offered as `namespace__name`; a custom tool as a function with one string, `input`. Tools
that only OpenAI's servers run are not offered. It knows no dialect and no template.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.interface.request import errors
from app.interface.wire.custom_tools import is_strict, parameters_of
from app.interface.wire.fields import MAX_TOOLS
from app.interface.wire.response_tools import (
    AllowedTools,
    CustomTool,
    FileSearchChoice,
    FileSearchTool,
    FunctionTool,
    HostedTool,
    NamedToolChoice,
    NamespaceTool,
    ResponseTool,
    ToolChoice,
)
from app.interface.wire.tools import FunctionDefinition, Tool

_MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that is offered to the model."""

    tool: FunctionTool | CustomTool
    namespace: NamespaceTool | None
    field: str
    """Its place in the request: `tools[2]`, or `tools[2].tools[0]`."""
    begins_namespace: bool = False
    """Whether the namespace's description precedes its own."""

    @property
    def alias(self) -> str:
        """The name by which the model calls it."""
        return alias_of(self.tool.name, self.namespace.name if self.namespace is not None else None)

    @property
    def as_function(self) -> Tool:
        """The function that the model sees."""
        tool = self.tool
        description = tool.description
        if self.begins_namespace and self.namespace is not None and self.namespace.description:
            description = "\n\n".join(filter(None, [self.namespace.description, description]))
        function = FunctionDefinition(
            name=self.alias,
            description=description,
            parameters=parameters_of(tool.grammar) if isinstance(tool, CustomTool) else tool.parameters,
            strict=is_strict(tool.grammar) if isinstance(tool, CustomTool) else tool.strict,
        )
        return Tool(type="function", function=function)


def alias_of(name: str, namespace: str | None) -> str:
    """Returns the name by which the model calls a tool; always the same, since calls of earlier turns have it too."""
    if not namespace:
        return name
    joined = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
    if len(joined) <= _MAX_NAME_CHARS:
        return joined
    return f"{joined[: _MAX_NAME_CHARS - 9]}_{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def offered_tools(tools: Sequence[ResponseTool] | None, choice: ToolChoice | None = None) -> list[OfferedTool]:
    """Returns the tools for the model, in the request's order. Raises ApiError (400)."""
    offered = list(_flattened(tools or ()))
    if len(offered) > MAX_TOOLS:
        raise errors.invalid(f"'tools': there are more than {MAX_TOOLS} with those in namespaces.", "tools")
    if isinstance(choice, AllowedTools):
        allowed = [
            _named(offered, one, f"tool_choice.tools[{i}]")
            for i, one in enumerate(choice.tools)
            if not isinstance(one, FileSearchChoice)
        ]
        return [tool for tool in offered if tool in allowed]
    return offered


def file_search_of(tools: Sequence[ResponseTool] | None, choice: ToolChoice | None) -> FileSearchTool | None:
    """Returns the search before the answer; None: there is none, or it is not allowed. Raises ApiError (400)."""
    found = [tool for tool in tools or () if isinstance(tool, FileSearchTool)]
    if len(found) > 1:
        raise errors.invalid("'tools': there is more than one file_search: give one with all ids.", "tools")
    wanted = {"tool_choice": choice}
    if isinstance(choice, AllowedTools):
        wanted = {f"tool_choice.tools[{i}]": one for i, one in enumerate(choice.tools)}
    chooses = [field for field, one in wanted.items() if isinstance(one, FileSearchChoice)]
    if chooses and not found:
        raise errors.invalid(f"'{chooses[0]}': there is no file_search in 'tools'.", chooses[0], "invalid_value")
    if not found or choice == "none" or (isinstance(choice, AllowedTools) and not chooses):
        return None
    return found[0]


def chosen(offered: Sequence[OfferedTool], choice: ToolChoice | None, search: FileSearchTool | None = None) -> Any:
    """Returns `tool_choice` of the equivalent chat request. Raises ApiError (400).

    search: the one before the answer, which is a call, too: without other tools, the model does not have to call any.
    """
    if isinstance(choice, AllowedTools):
        choice = choice.mode
    if isinstance(choice, FileSearchChoice) or (choice == "required" and search is not None and not offered):
        choice = "auto"
    if isinstance(choice, NamedToolChoice):
        return {"type": "function", "function": {"name": _named(offered, choice, "tool_choice").alias}}
    return None if choice == "auto" and not offered else choice


def shown(tools: Iterable[ResponseTool]) -> list[dict[str, Any]]:
    """Returns the tools as an answer repeats them, without those that are ignored."""
    kept = [tool for tool in tools if not isinstance(tool, HostedTool)]
    defaults: dict[str, Any] = {"parameters": None, "strict": False}
    return [
        (defaults if isinstance(tool, FunctionTool) else {}) | tool.model_dump(by_alias=True, exclude_none=True)
        for tool in kept
    ]


def _flattened(tools: Sequence[ResponseTool]) -> Iterator[OfferedTool]:
    for i, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for j, inner in enumerate(tool.tools):
                yield OfferedTool(inner, tool, f"tools[{i}].tools[{j}]", begins_namespace=j == 0)
        elif not isinstance(tool, (HostedTool, FileSearchTool)):
            yield OfferedTool(tool, None, f"tools[{i}]")


def _named(offered: Sequence[OfferedTool], choice: NamedToolChoice, field: str) -> OfferedTool:
    for tool in offered:
        if (tool.tool.type, tool.tool.name) == (choice.type, choice.name):
            return tool
    raise errors.invalid(f"'{field}': no such {choice.type} in 'tools'.", field, "invalid_value")
