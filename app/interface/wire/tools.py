"""The types of functions and custom tools in a request, and of the choice among them, as in chat completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.interface.wire.custom_tools import CustomGrammar, is_strict, or_custom, parameters_of
from app.interface.wire.fields import MAX_TOOLS, Dropped, FunctionName, Wire, only


class FunctionDefinition(Wire):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Wire):
    """An entry of `tools`."""

    type: Annotated[Literal["function"], only("function")]
    function: FunctionDefinition
    cache_control: Dropped = None


class CustomAsFunction(Tool):
    """The function that stands for a custom tool."""


class CustomToolFormat(Wire):
    """The format of a custom tool's input."""

    type: Literal["text", "grammar"]
    grammar: CustomGrammar | None = None

    @model_validator(mode="after")
    def _has_its_grammar(self) -> Self:
        if (self.type == "grammar") != (self.grammar is not None):
            raise PydanticCustomError("invalid", "needs 'grammar' where its type is grammar, and only there")
        return self


class CustomDefinition(Wire):
    """A custom tool that the model may call."""

    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    format: CustomToolFormat | None = None


class CustomTool(Wire):
    """An entry of `tools` whose input is text."""

    type: Literal["custom"]
    custom: CustomDefinition
    cache_control: Dropped = None

    def as_function(self) -> Tool:
        """Returns the function that the model sees."""
        custom = self.custom
        grammar = custom.format.grammar if custom.format is not None else None
        function = FunctionDefinition(
            name=custom.name,
            description=custom.description,
            parameters=parameters_of(grammar),
            strict=is_strict(grammar),
        )
        return CustomAsFunction(type="function", function=function)


ChatTool = Annotated[Tool, or_custom(CustomTool, CustomTool.as_function)]


class NamedFunction(Wire):
    """The function to call."""

    name: FunctionName


class NamedToolChoice(Wire):
    """`tool_choice` of one function."""

    type: Annotated[Literal["function"], only("function")]
    function: NamedFunction


class NamedCustomChoice(Wire):
    """`tool_choice` of one custom tool."""

    type: Literal["custom"]
    custom: NamedFunction

    def as_function(self) -> NamedToolChoice:
        return NamedToolChoice(type="function", function=self.custom)


NamedChoice = Annotated[NamedToolChoice, or_custom(NamedCustomChoice, NamedCustomChoice.as_function)]


class AllowedFunctions(Wire):
    """Some of the functions, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Wire):
    """`tool_choice` of some of the functions."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


def _choice_kind(value: object) -> str | None:
    if isinstance(value, dict):
        return "some functions" if value.get("type") == "allowed_tools" else "one function"
    return "mode" if isinstance(value, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedChoice, Tag("one function")]
    | Annotated[AllowedTools, Tag("some functions")],
    Discriminator(
        _choice_kind,
        custom_error_type="wrong_type",
        custom_error_message='should be "none", "auto", "required", a function, a custom tool or allowed_tools',
    ),
]
