"""What a request wants of functions and formats: the text that tells the model of them, and what its output must be.

A model whose template takes `tools` is told in its own way; any other in a system message of ours, in Hermes' format.
What the output must be is a JSON schema as text, which the engine's constraint is compiled from elsewhere. Knows
neither tokens nor templates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from app import errors
from app.call_grammar import CallableFunction, call_grammar
from app.openai_types import ChatCompletionRequest, Message, NamedToolChoice, ResponseFormat, Tool

MAX_SCHEMA_BYTES = 65536
MAX_SCHEMA_LEVELS = 64
MAX_FORCED_CALLS = 16
_COMBINED = frozenset({"allOf", "not", "if", "then", "else", "$dynamicRef", "dependentSchemas"})
_OPEN = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"})


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output has to be, and what of the request says so."""

    schema: str
    """A JSON schema, or a grammar with calls in it (`app.call_grammar`), as text."""
    fields: tuple[str, ...]
    """Whose fault it is if it can't be followed: of several, the i-th is `$defs/f<i>`, or the grammar's i-th schema."""

    def field_of(self, definition: str | None) -> str:
        """The request's field behind one of the schema's definitions."""
        number = definition[1:] if definition and definition[0] == "f" else ""
        if number.isdecimal() and int(number) < len(self.fields):
            return self.fields[int(number)]
        return self.fields[0] if len(self.fields) == 1 else "tools"


@dataclass(frozen=True, slots=True)
class Functions:
    """How calls are looked for in an output."""

    names: tuple[str, ...]
    mode: Literal["auto", "list", "named"]
    """"list" and "named": a grammar makes the whole output a list of calls, or one function's arguments."""
    parallel: bool = True
    """Whether an output may have several calls."""
    bare: Literal["any", "strict", "none"] = "any"
    """Which objects at an output's begin may be calls without a mark; not "any": a grammar holds calls to schemas."""


def functions_of(request: ChatCompletionRequest) -> Functions | None:
    """None: the model is to call nothing. Raises ApiError (400)."""
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
    if not any(tool.function.strict for tool in request.tools or ()):
        return Functions(names, "auto", parallel)
    has_format = request.response_format is not None and request.response_format.type != "text"
    return Functions(names, "auto", parallel, "none" if has_format else "strict")


def grammar_of(
    request: ChatCompletionRequest, functions: Functions | None, special: Mapping[int, str] | None = None
) -> Grammar | None:
    """What the output has to follow. Raises ApiError (400) naming the field.

    special: the vocabulary's special tokens, of which calls' marks may be some.
    """
    form = request.response_format
    schema: Any = None
    fields: tuple[str, ...] = ("response_format",)
    if functions is not None and functions.mode != "auto":
        if form is not None and form.type != "text":
            raise errors.invalid("'response_format' and a forced 'tool_choice' contradict each other.", fields[0])
        schema = _forced_schema(request.tools or (), functions, request.parallel_tool_calls is not False)
        fields = tuple(
            f"tools[{i}].function.parameters"
            for i, tool in enumerate(request.tools or ())
            if tool.function.name in functions.names
        )
    elif form is not None and form.type == "json_object":
        schema = {"type": "object"}
    elif form is not None and form.json_schema is not None:
        schema = form.json_schema.schema_ if form.json_schema.schema_ is not None else {"type": "object"}
        if not form.json_schema.strict:
            schema = {**schema, "x-guidance": {"lenient": True}}
        fields = ("response_format.json_schema.schema",)
    has_strict_calls = functions is not None and functions.bare != "any"
    if schema is None and not has_strict_calls:
        return None
    for name, value in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if value:
            raise errors.invalid(f"'{name}' does not go with an output that has to follow a schema.", name)
    text = "" if schema is None else _bounded(schema, fields[0] if len(fields) == 1 else "tools")
    if functions is None or not has_strict_calls:
        return Grammar(text, fields)
    tools = request.tools or ()
    callables = [_callable(tool, f"tools[{i}].function.parameters") for i, tool in enumerate(tools)]
    text = call_grammar(callables, special or {}, parallel=functions.parallel, answer=schema)
    if len(text) > 2 * MAX_SCHEMA_BYTES:
        raise errors.invalid("'tools': the functions' schemas are too large together.", "tools", "invalid_value")
    of_tools = (f"tools[{i}].function.parameters" for i in range(len(tools)))
    return Grammar(text, (*of_tools, *(fields if schema is not None else ())))


def _callable(tool: Tool, field: str) -> CallableFunction:
    """Of a function that is not strict, arguments may be any object."""
    if not tool.function.strict:
        return CallableFunction(tool.function.name, {"type": "object"})
    schema = {"type": "object", "properties": {}} if tool.function.parameters is None else tool.function.parameters
    _bounded(schema, field)
    return CallableFunction(tool.function.name, _closed(schema))


def _bounded(schema: Any, field: str) -> str:
    if _levels(schema) > MAX_SCHEMA_LEVELS:
        raise errors.invalid(f"'{field}': a schema may be {MAX_SCHEMA_LEVELS} levels deep.", field, "invalid_value")
    text = orjson.dumps(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise errors.invalid(f"'{field}': a schema may have {MAX_SCHEMA_BYTES} bytes.", field, "invalid_value")
    return text.decode()


def _levels(value: Any) -> int:
    levels, layer = 0, [value]
    while layer := [
        inner
        for item in layer
        if isinstance(item, (dict, list))
        for inner in (item.values() if isinstance(item, dict) else item)
    ]:
        levels += 1
        if levels > MAX_SCHEMA_LEVELS:
            break
    return levels


def _forced_schema(tools: Sequence[Tool], functions: Functions, parallel: bool) -> dict[str, Any]:
    """One function's arguments, or a list of calls; each function's schema lies under a name of its own."""
    parameters: dict[str, Any] = {}
    for i, tool in enumerate(tools):
        schema = tool.function.parameters
        if schema is not None and _levels(schema) > MAX_SCHEMA_LEVELS // 2:
            field = f"tools[{i}].function.parameters"
            message = f"'{field}': a schema may be {MAX_SCHEMA_LEVELS // 2} levels deep."
            raise errors.invalid(message, field, "invalid_value")
        parameters[tool.function.name] = _closed({"type": "object", "properties": {}} if schema is None else schema)
    strict = any(tool.function.strict for tool in tools if tool.function.name in functions.names)
    lenient: dict[str, Any] = {} if strict else {"x-guidance": {"lenient": True}}
    if functions.mode == "named":
        return {**parameters[functions.names[0]], **lenient}
    definitions, calls = {}, []
    for i, name in enumerate(functions.names):
        definitions[f"f{i}"] = _moved(parameters[name], f"#/$defs/f{i}")
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


def _closed(schema: Any) -> Any:
    """The schema without arguments that it doesn't name, unless it speaks of them: small models make some up."""
    return schema if _combines(schema) else _with_closed_objects(schema)


def _combines(value: Any) -> bool:
    """Whether objects are put together of several schemas: what one of them does not name another one may."""
    if isinstance(value, dict):
        beside = value.keys() & {"$ref", "anyOf", "oneOf"}
        if value.keys() & _COMBINED or (beside and "properties" in value):
            return True
        value = list(value.values())
    return isinstance(value, list) and any(map(_combines, value))


def _with_closed_objects(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(inner := schema.get(key), dict):
            closed[key] = {name: _with_closed_objects(value) for name, value in inner.items()}
    if "items" in schema:
        closed["items"] = _with_closed_objects(schema["items"])
    if isinstance(schema.get("properties"), dict) and not schema.keys() & _OPEN:
        closed["additionalProperties"] = False
    return closed


def _moved(value: Any, place: str) -> Any:
    """The schema with its own references leading to where it is now."""
    if isinstance(value, dict):
        return {
            key: place + item[1:]
            if key == "$ref" and isinstance(item, str) and item[:1] == "#"
            else _moved(item, place)
            for key, item in value.items()
        }
    return [_moved(item, place) for item in value] if isinstance(value, list) else value


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As templates and models expect them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def told_in_text(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation for a template that knows nothing of functions: our own words, calls and results as text."""
    told: list[Message] = []
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{_text(message)}\n</tool_response>"
            if told and told[-1].role == "user" and _text(told[-1]).startswith("<tool_response>"):
                told[-1] = Message(role="user", content=f"{_text(told[-1])}\n{text}")
            else:
                told.append(Message(role="user", content=text))
        elif message.tool_calls:
            calls = [
                f'<tool_call>\n{{"name": "{call.function.name}", "arguments": {call.function.arguments}}}\n</tool_call>'
                for call in message.tool_calls
            ]
            told.append(Message(role="assistant", content="\n".join([*filter(None, [_text(message)]), *calls])))
        else:
            told.append(message)
    if tools:
        listed = "\n".join(orjson.dumps(tool).decode() for tool in definitions(tools))
        words = (
            "You can call functions. To call one, answer with a JSON object between tags, and nothing else:\n"
            '<tool_call>\n{"name": "<its name>", "arguments": {<its arguments>}}\n</tool_call>\n'
            f"These functions can be called:\n{listed}"
        )
        told = _with_system(told, words)
    return told


def told_of_format(messages: Sequence[Message], form: ResponseFormat | None) -> Sequence[Message]:
    """The conversation with what a format says of itself; its schema is only followed."""
    if form is None or form.json_schema is None or not form.json_schema.description:
        return messages
    return _with_system(messages, f"The answer's format is {form.json_schema.name}: {form.json_schema.description}")


def _with_system(messages: Sequence[Message], words: str) -> list[Message]:
    """The same with our own words at the end of the system message, or as one."""
    if messages and messages[0].role in ("system", "developer"):
        return [Message(role="system", content=f"{_text(messages[0])}\n\n{words}"), *messages[1:]]
    return [Message(role="system", content=words), *messages]


def _text(message: Message) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def call_entry(call_id: str, name: str, arguments: str) -> Mapping[str, Any]:
    """An entry of an answer's `tool_calls`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
