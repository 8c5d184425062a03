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
from app.openai_types import ChatCompletionRequest, Message, NamedToolChoice, Tool

MAX_SCHEMA_BYTES = 65536
MAX_SCHEMA_LEVELS = 64
MAX_FORCED_CALLS = 16


@dataclass(frozen=True, slots=True)
class Functions:
    """How calls are looked for in an output."""

    names: tuple[str, ...]
    mode: Literal["auto", "list", "named"]
    """"list" and "named": a grammar makes the whole output a list of calls, or one function's arguments."""
    parallel: bool = True
    """Whether an output may have several calls."""


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
    return Functions(names, "list" if choice == "required" else "auto", request.parallel_tool_calls is not False)


def grammar_of(request: ChatCompletionRequest, functions: Functions | None) -> str | None:
    """The JSON schema, as text, that the output has to follow. Raises ApiError (400) naming the field."""
    form = request.response_format
    schema: Any = None
    field = "response_format"
    if functions is not None and functions.mode != "auto":
        if form is not None and form.type != "text":
            raise errors.invalid("'response_format' and a forced 'tool_choice' contradict each other.", field)
        schema, field = (
            _forced_schema(request.tools or (), functions, request.parallel_tool_calls is not False),
            "tools",
        )
    elif form is not None and form.type == "json_object":
        schema = {"type": "object"}
    elif form is not None and form.json_schema is not None:
        schema = form.json_schema.schema_ if form.json_schema.schema_ is not None else {"type": "object"}
        if not form.json_schema.strict:
            schema = {**schema, "x-guidance": {"lenient": True}}
        field = "response_format.json_schema.schema"
    if schema is None:
        return None
    for name, value in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if value:
            raise errors.invalid(f"'{name}' does not go with an output that has to follow a schema.", name)
    return _bounded(schema, field)


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
    parameters = {tool.function.name: tool.function.parameters for tool in tools}
    for name, schema in parameters.items():
        if schema is not None and _levels(schema) > MAX_SCHEMA_LEVELS // 2:
            raise errors.invalid(f"'tools': the schema of '{name}' is too deep.", "tools", "invalid_value")
    if functions.mode == "named":
        return dict(parameters[functions.names[0]] or {"type": "object"})
    definitions, calls = {}, []
    for i, name in enumerate(functions.names):
        definitions[f"f{i}"] = _moved(parameters[name] or {"type": "object"}, f"#/$defs/f{i}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/f{i}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    most = MAX_FORCED_CALLS if parallel else 1
    return {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}, "$defs": definitions}


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
        if told and told[0].role in ("system", "developer"):
            told[0] = Message(role="system", content=f"{_text(told[0])}\n\n{words}")
        else:
            told.insert(0, Message(role="system", content=words))
    return told


def _text(message: Message) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def call_entry(call_id: str, name: str, arguments: str) -> Mapping[str, Any]:
    """An entry of an answer's `tool_calls`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
