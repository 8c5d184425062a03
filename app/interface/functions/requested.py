"""The functions that a request lets the model call, and the grammar that its output must follow.

A grammar is sent to the worker as text, where the engine compiles it. It knows neither tokens nor templates: `text`
writes the functions into the prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.interface.functions.answer_forms import AnswerForm, answer_form
from app.interface.functions.call_grammar import answer_grammar, call_grammar
from app.interface.functions.dialect import CallableFunction, Dialect, json_rule
from app.interface.functions.dialects import DIALECTS, grammar_dialects
from app.interface.functions.harmony import HARMONY, channel_grammar
from app.interface.functions.schemas import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_LEVELS,
    bounded_schema,
    closed_schema,
    moved_definitions,
    nesting_levels,
)
from app.interface.request import errors
from app.interface.thinking.marks import Thought
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.generation import GenerationRequest
from app.interface.wire.tools import CustomAsFunction, NamedToolChoice, Tool
from app.messages.grammar import with_begun

MAX_FORCED_CALLS = 16
MAX_GRAMMAR_BYTES = 2 * MAX_SCHEMA_BYTES
"""The limit of strict functions together, as JSON: the grammar contains a schema about twice. llguidance's lexer may
refuse larger ones while it generates."""
MAX_TAGGED_GRAMMAR_BYTES = 2 * MAX_GRAMMAR_BYTES
"""The limit where a dialect has arguments between tags: they are more text, and less work."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar of an output, and the request's fields that require it."""

    schema: str
    """A JSON schema, or a grammar as `app.messages.grammar` has it."""
    fields: tuple[str, ...]
    """The fields to name in errors. The i-th belongs to `$defs/f<i>`, or to the grammar's i-th part."""

    def going_on(self, text: str) -> "Grammar":
        """Returns the grammar of an output that goes on with this text."""
        return replace(self, schema=with_begun(self.schema, text))

    def field_of(self, definition: str | None) -> str:
        """Returns the request's field of one of the schema's definitions."""
        number = definition[1:] if definition and definition[0] == "f" else ""
        if number.isdecimal() and int(number) < len(self.fields):
            return self.fields[int(number)]
        return self.fields[0] if len(self.fields) == 1 else "tools"


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions that may be called, and how calls are found in an output."""

    names: tuple[str, ...]
    mode: Literal["auto", "list", "named"]
    """"list" and "named": a grammar makes the whole output a list of calls, or one function's arguments."""
    parallel: bool = True
    """Whether an output may have several calls."""
    bare: Literal["any", "strict", "none"] = "any"
    """Which objects at an output's beginning may be calls without a mark; except with "any", a grammar has schemas."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of the functions' arguments, by name."""
    dialects: tuple[Dialect, ...] = DIALECTS
    """The dialects in which calls are recognized."""


def functions_of(request: ChatCompletionRequest) -> Functions | None:
    """Returns the functions; None: the model may call none. Raises ApiError (400)."""
    choice = request.tool_choice
    names = tuple(tool.function.name for tool in request.tools or ())
    if len(set(names)) < len(names):
        raise errors.invalid("'tools': two functions have the same name.", "tools", "invalid_value")
    if not names:
        if choice not in (None, "none"):
            raise errors.invalid("'tool_choice' is allowed only with 'tools'.", "tool_choice", "invalid_value")
        if request.parallel_tool_calls is not None and request.tools is None:
            message = "'parallel_tool_calls' is allowed only with 'tools'."
            raise errors.invalid(message, "parallel_tool_calls", "invalid_value")
        return None
    if choice == "none":
        return None
    if isinstance(choice, NamedToolChoice):
        if choice.function.name not in names:
            raise errors.invalid("'tool_choice': no such function in 'tools'.", "tool_choice", "invalid_value")
        return Functions((choice.function.name,), "named")
    parallel = request.parallel_tool_calls is not False
    if choice == "required":
        return Functions(names, "list", parallel)
    schemas = {tool.function.name: tool.function.parameters for tool in request.tools or ()}
    if not any(tool.function.strict for tool in request.tools or ()):
        return Functions(names, "auto", parallel, schemas=schemas)
    return Functions(names, "auto", parallel, "strict" if answer_form(request) is None else "none", schemas)


def in_channels(functions: Functions) -> Functions:
    """Adapts the functions to a model that writes calls into channels, where a grammar forces the message."""
    return replace(functions, mode="auto", bare="none", dialects=(HARMONY,))


def grammar_of(
    request: ChatCompletionRequest,
    functions: Functions | None,
    added: Mapping[int, str] | None = None,
    thought: Thought | None = None,
    dialects: Sequence[Dialect] = grammar_dialects(None),
) -> Grammar | None:
    """Returns the output's grammar; None: no restriction. Raises ApiError (400) naming the field.

    added: the vocabulary's added tokens by id; marks of calls and thoughts may be among them.
    thought: how the output may begin with a free thought; None: it does not.
    dialects: those of the model's calls (`grammar_dialects`).
    """
    form = answer_form(request)
    tools = request.tools or ()
    fields: tuple[str, ...] = () if form is None else (form.field,)
    if functions is not None and functions.mode != "auto":
        numbered = enumerate(tools)
        fields = tuple(_field(i, one) for i, one in numbered if one.function.name in functions.names)
        schema = _forced_schema(tools, functions, request.parallel_tool_calls is not False)
        text = bounded_schema(schema, fields[0] if len(fields) == 1 else "tools")
        form = AnswerForm(fields[0], json_rule(schema), text)
    has_strict_calls = functions is not None and functions.bare != "any"
    if form is None and not has_strict_calls:
        return None
    _check_end(request)
    answer = None if form is None else form.rule
    goes_on = thought is not None and thought.begun is not None
    in_channels = thought is not None and thought.in_channels
    if in_channels and functions is not None and functions.mode != "auto":
        forced = [_forced(tool) for tool in tools if tool.function.name in functions.names]
        return Grammar(channel_grammar(forced, added or {}, has_to_call=True, goes_on=goes_on), fields)
    if functions is None or not has_strict_calls:
        assert form is not None
        assert answer is not None
        if in_channels:
            return Grammar(form.within(channel_grammar([], added or {}, answer=answer, goes_on=goes_on)), fields)
        if thought is not None:
            return Grammar(form.within(answer_grammar(answer, added or {}, thought)), fields)
        return Grammar(form.alone, fields)
    callables = [_callable(tool, _field(i, tool)) for i, tool in enumerate(tools)]

    def calls(dialects: Sequence[Dialect]) -> str:
        parallel = functions.parallel
        return call_grammar(
            callables, added or {}, parallel=parallel, answer=answer, thought=thought, dialects=dialects
        )

    text = channel_grammar(callables, added or {}, answer=answer, goes_on=goes_on) if in_channels else calls(dialects)
    is_tagged = not in_channels and dialects != grammar_dialects(None)
    if is_tagged and len(text) > MAX_TAGGED_GRAMMAR_BYTES:
        is_tagged, text = False, calls(grammar_dialects(None))
    if not is_tagged and len(text) > MAX_GRAMMAR_BYTES:
        raise errors.invalid("'tools': the functions' schemas are too large together.", "tools", "invalid_value")
    of_tools = (_field(i, tool) for i, tool in enumerate(tools))
    return Grammar(text if form is None else form.within(text), (*of_tools, *fields))


def grammar_of_text(request: GenerationRequest) -> Grammar | None:
    """Returns the grammar of an output without calls and thoughts; None: no restriction. Raises ApiError (400)."""
    form = answer_form(request)
    if form is None:
        return None
    _check_end(request)
    return Grammar(form.alone, (form.field,))


def _check_end(request: GenerationRequest) -> None:
    for name, value in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if value:
            raise errors.invalid(f"'{name}' does not go with an output that has to follow a schema.", name)


def _field(number: int, tool: Tool) -> str:
    """Returns the field of a tool's schema."""
    is_custom = isinstance(tool, CustomAsFunction)
    return f"tools[{number}].{'custom.format.grammar.definition' if is_custom else 'function.parameters'}"


def _callable(tool: Tool, field: str) -> CallableFunction:
    """A function that is not strict takes any object as its arguments."""
    if not tool.function.strict:
        return CallableFunction(tool.function.name, {"type": "object"})
    schema = {"type": "object", "properties": {}} if tool.function.parameters is None else tool.function.parameters
    bounded_schema(schema, field)
    return CallableFunction(tool.function.name, closed_schema(schema))


def _forced(tool: Tool) -> CallableFunction:
    """Converts a function that must be called, or one of several."""
    schema = {"type": "object", "properties": {}} if tool.function.parameters is None else tool.function.parameters
    lenient: dict[str, Any] = {} if tool.function.strict else {"x-guidance": {"lenient": True}}
    return CallableFunction(tool.function.name, {**closed_schema(schema), **lenient})


def _forced_schema(tools: Sequence[Tool], functions: Functions, parallel: bool) -> dict[str, Any]:
    """Returns the schema of one function's arguments, or of a list of calls with the functions' as definitions."""
    parameters: dict[str, Any] = {}
    for i, tool in enumerate(tools):
        schema = tool.function.parameters
        if schema is not None and nesting_levels(schema) > MAX_SCHEMA_LEVELS // 2:
            field = _field(i, tool)
            message = f"'{field}': a schema may be {MAX_SCHEMA_LEVELS // 2} levels deep."
            raise errors.invalid(message, field, "invalid_value")
        parameters[tool.function.name] = closed_schema(
            {"type": "object", "properties": {}} if schema is None else schema
        )
    strict = any(tool.function.strict for tool in tools if tool.function.name in functions.names)
    lenient: dict[str, Any] = {} if strict else {"x-guidance": {"lenient": True}}
    if functions.mode == "named":
        return {**parameters[functions.names[0]], **lenient}
    definitions, calls = {}, []
    for i, name in enumerate(functions.names):
        definitions[f"f{i}"] = moved_definitions(parameters[name], f"#/$defs/f{i}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/f{i}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    most = MAX_FORCED_CALLS if parallel else 1
    listed = {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}}
    return {**listed, "$defs": definitions, **lenient}
