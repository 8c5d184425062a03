"""Every field inside a parameter that OpenAI's client can send is honoured, or refused with a 400 that names it.

The test walks the client's own types, down to objects that the service refuses as a whole. All others must be in the
table below, which has two values per field that lead to different engine requests. So it fails if a new version of the
client has a field that we would ignore.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin

import pytest
from typing_extensions import get_type_hints, is_typeddict

from tests.app.interface.documents.test_openapi import FUNCTION, PATHS, Client
from tests.app.tiny_model import tiny_model

Body = Callable[[Any], dict[str, Any]]
Effects = dict[str, tuple[Any, Any] | None]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TEMPLATE = (
    "{{ tools | tojson }}{% for message in messages %}<|im_start|>{{ message | tojson }}<|im_end|>{% endfor %}"
    "{# tool_calls developer #}<|im_start|>assistant"
)
"""A template that shows all its variables."""
FUNCTIONS: list[dict[str, Any]] = [FUNCTION, {"name": "g"}]
CONTEXT: dict[tuple[str, str], dict[str, Any]] = {
    (CHAT, "stream_options"): {"stream": True},
    (TEXT, "stream_options"): {"stream": True},
    (RESPONSES, "stream_options"): {"stream": True},
    (CHAT, "tool_choice"): {"tools": [{"type": "function", "function": function} for function in FUNCTIONS]},
    (RESPONSES, "tool_choice"): {
        "tools": [
            *({"type": "function", **function} for function in FUNCTIONS),
            {"type": "custom", "name": "c"},
            {"type": "custom", "name": "d", "format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}},
        ]
    },
    (CHAT, "tools"): {"tool_choice": "required"},
    (RESPONSES, "tools"): {"tool_choice": "required"},
}
"""Further fields that a parameter needs to have an effect."""
BEFORE: dict[str, list[Any]] = {name: [{"role": "user", "content": "hi"}] for name in ("messages", "input")}
"""Entries that must precede a list's entry."""
NEEDED: dict[str, dict[str, Any]] = {
    "ChatCompletionAssistantMessageParam": {"content": "hi"},
    "ResponseOutputTextParam": {"annotations": []},
    "ResponseFunctionToolCallParam": {"arguments": "{}"},
    "FunctionCallOutput": {"call_id": "c"},
    "messages.tool_calls.function": {"arguments": "{}"},
    "tool_choice.function": {"name": "f"},
    "tool_choice.custom": {"name": "f"},
    "ToolChoiceFunctionParam": {"name": "f"},
    "ToolChoiceCustomParam": {"name": "c"},
    "ToolChoiceAllowedParam": {"tools": [{"type": "function", "name": "f"}]},
}
"""Values of an object's required fields that can't be arbitrary."""
WORDS = ("one", "another")
SCHEMAS = ({"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}})
YES_NO = (True, False)
DESCRIBES = None
"""Names of answers and schemas, or states of returned items: without effect."""
MESSAGE: Effects = {"content": WORDS, "name": WORDS}
PART: Effects = {"text": WORDS}
FUNCTION_TOOL: Effects = {
    "name": WORDS,
    "description": WORDS,
    "parameters": SCHEMAS,
    "strict": YES_NO,
    "defer_loading": DESCRIBES,
}
TABLE: dict[str, dict[str, Effects]] = {
    CHAT: {
        "ChatCompletionSystemMessageParam": MESSAGE,
        "ChatCompletionDeveloperMessageParam": MESSAGE,
        "ChatCompletionUserMessageParam": MESSAGE,
        "ChatCompletionAssistantMessageParam": MESSAGE | {"refusal": DESCRIBES},
        "ChatCompletionToolMessageParam": {"content": WORDS, "tool_call_id": WORDS},
        "ChatCompletionContentPartTextParam": PART,
        "ChatCompletionMessageFunctionToolCallParam": {"id": WORDS},
        "messages.tool_calls.function": {"name": WORDS, "arguments": ("{}", '{"a": 1}')},
        "ResponseFormatText": {},
        "ResponseFormatJSONObject": {},
        "ResponseFormatJSONSchema": {},
        "JSONSchema": {"name": DESCRIBES, "description": WORDS, "schema": SCHEMAS, "strict": YES_NO},
        "ChatCompletionStreamOptionsParam": {"include_usage": YES_NO},
        "ChatCompletionNamedToolChoiceParam": {},
        "tool_choice.function": {"name": ("f", "g")},
        "ChatCompletionNamedToolChoiceCustomParam": {},
        "tool_choice.custom": {"name": ("f", "g")},
        "ChatCompletionFunctionToolParam": {},
        "ChatCompletionCustomToolParam": {},
        "ChatCompletionMessageCustomToolCallParam": {"id": WORDS},
        "messages.tool_calls.custom": {"name": WORDS, "input": WORDS},
        "tools.custom": {"name": WORDS, "description": WORDS},
        "CustomFormatText": {},
        "CustomFormatGrammar": {},
        "CustomFormatGrammarGrammar": {"definition": ("a", "b"), "syntax": ("lark", "regex")},
        "FunctionDefinition": {"name": WORDS, "description": WORDS, "parameters": SCHEMAS, "strict": YES_NO},
    },
    TEXT: {"ChatCompletionStreamOptionsParam": {"include_usage": YES_NO}},
    RESPONSES: {
        "EasyInputMessageParam": {"content": WORDS, "role": ("user", "assistant"), "phase": DESCRIBES},
        "Message": {"role": ("user", "system"), "status": DESCRIBES},
        "ResponseOutputMessageParam": {"id": DESCRIBES, "status": DESCRIBES, "phase": DESCRIBES},
        "ResponseInputTextParam": PART,
        "ResponseInputTextContentParam": PART,
        "ResponseOutputTextParam": PART | {"annotations": DESCRIBES},
        "Logprob": {"token": DESCRIBES, "bytes": DESCRIBES, "logprob": DESCRIBES},
        "LogprobTopLogprob": {"token": DESCRIBES, "bytes": DESCRIBES, "logprob": DESCRIBES},
        "ResponseFunctionToolCallParam": {
            "arguments": ("{}", '{"a": 1}'),
            "call_id": WORDS,
            "name": WORDS,
            "namespace": WORDS,
            "caller": DESCRIBES,
            "id": DESCRIBES,
            "status": DESCRIBES,
        },
        "FunctionCallOutput": {
            "call_id": WORDS,
            "output": WORDS,
            **dict.fromkeys(("id", "status", "caller", "name", "namespace")),
        },
        "ResponseCustomToolCallParam": {
            **dict.fromkeys(("call_id", "name", "namespace", "input"), WORDS),
            **dict.fromkeys(("id", "caller")),
        },
        "ResponseCustomToolCallOutputParam": {"call_id": WORDS, "output": WORDS, "id": DESCRIBES, "caller": DESCRIBES},
        "ResponseReasoningItemParam": dict.fromkeys(("id", "status", "encrypted_content", "summary", "content")),
        "Summary": {"text": DESCRIBES},
        "Content": {"text": DESCRIBES},
        "ResponseTextConfigParam": {"verbosity": DESCRIBES},
        "ResponseFormatText": {},
        "ResponseFormatJSONObject": {},
        "ResponseFormatTextJSONSchemaConfigParam": {
            "name": DESCRIBES,
            "description": WORDS,
            "schema": SCHEMAS,
            "strict": YES_NO,
        },
        "Reasoning": dict.fromkeys(("effort", "summary", "generate_summary", "context")),
        "StreamOptions": {},
        "ToolChoiceFunctionParam": {"name": ("f", "g")},
        "ToolChoiceCustomParam": {"name": ("c", "d")},
        "ToolChoiceAllowedParam": {"mode": ("auto", "required")},
        "FunctionToolParam": FUNCTION_TOOL,
        "ToolFunction": FUNCTION_TOOL,
        "CustomToolParam": {"name": WORDS, "description": WORDS, "defer_loading": DESCRIBES},
        "Text": {},
        "Grammar": {"definition": ("a", "b"), "syntax": ("lark", "regex")},
        "NamespaceToolParam": {"name": WORDS, "description": WORDS},
    },
}
"""The supported objects, by name in the client, or by place if that is ambiguous.

Each field with an effect has two values; DESCRIBES: accepted without effect."""
NOTHING_ELSE: list[tuple[str, Any]] = [
    ("reasoning.mode", "standard"),
    ("stream_options.include_obfuscation", False),
    ("tools.allowed_callers", ["direct"]),
    ("tools.async", False),
    ("tools.tools.allowed_callers", ["direct"]),
    ("tools.tools.async", False),
    ("input.async", False),
]
"""Values without effect, accepted because they ask for the default."""
LEFT_OUT = {
    "AnnotationFileCitation": "of an answer",
    "AnnotationURLCitation": "of an answer",
    "AnnotationContainerFileCitation": "of an answer",
    "AnnotationFilePath": "of an answer",
    "CallerDirect": "of an answer",
    "CallerProgram": "of an answer",
    "FunctionCallOutputCallerDirect": "of an answer",
    "FunctionCallOutputCallerProgram": "of an answer",
    **dict.fromkeys(
        (
            "WebSearchToolParam",
            "WebSearchPreviewToolParam",
            "Mcp",
            "CodeInterpreter",
            "ImageGeneration",
            "LocalShell",
            "FunctionShellToolParam",
            "ComputerToolParam",
            "ComputerUsePreviewToolParam",
            "ProgrammaticToolCalling",
            "ToolSearchToolParam",
            "ApplyPatchToolParam",
        ),
        "a tool that OpenAI's servers run",
    ),
    **dict.fromkeys(
        (
            "ResponseFileSearchToolCallParam",
            "ResponseFunctionWebSearchParam",
            "ImageGenerationCall",
            "ResponseCodeInterpreterToolCallParam",
            "McpListTools",
            "McpCall",
        ),
        "a record of such a tool's call",
    ),
}
"""Objects that are accepted and ignored whatever they contain, as docs/api*.md says."""


class Walk:
    """Walks the types of one path's parameters."""

    def __init__(self, path: str) -> None:
        self.client = Client(model=tiny_model(TEMPLATE, context_tokens=8192))
        self.path = path
        self.complaints: list[str] = []
        self.met: set[tuple[str, str]] = set()
        _, hints, base = PATHS[path]
        for name, hint in fields(hints):

            def with_value(value: Any, name: str = name) -> dict[str, Any]:
                return base | CONTEXT.get((path, name), {}) | {name: value}

            self.visit(name, hint, with_value)

    def visit(self, place: str, hint: Any, body: Body) -> None:
        """Finds objects in a value's type."""
        if is_typeddict(hint):
            self.look_into(place, hint, body)
        elif is_list(hint):
            self.visit(place, plain(get_args(hint)[0]), lambda value: body([*BEFORE.get(place, []), value]))
        else:
            for one in options(hint):
                self.visit(place, one, body)

    def look_into(self, place: str, kind: Any, body: Body) -> None:
        """One kind of object: refused as a whole, or each of its fields is honoured or refused."""
        key = place if place in TABLE[self.path] else kind.__name__
        honoured = TABLE[self.path].get(key)
        least = smallest(kind, place)
        status, error = self.asked(body(least))
        if key in LEFT_OUT:
            none_is_left = place == "tools" and error is not None and error["param"] == "tool_choice"
            self.expect(status == 200 or none_is_left, f"{place}, {key}: {error}")
            return
        if honoured is None:
            self.expect(status == 400 and is_at(error, place), f"{place}, {key}: {status} {error}")
            return
        self.expect(status == 200, f"{place}, {key}: {error}")
        for field, hint in fields(kind):
            at = f"{place}.{field}"

            def with_field(value: Any, field: str = field) -> dict[str, Any]:
                return body(least | {field: value})

            if field in honoured:
                self.met.add((key, field))
                self.check_honoured(at, hint, honoured[field], with_field)
            elif len(values(hint)) != 1 or get_origin(hint) is not Literal:  # or it tells the kind
                self.check_refused(at, hint, with_field)
            self.visit(at, hint, with_field)

    def check_honoured(self, at: str, hint: Any, two: tuple[Any, Any] | None, body: Body) -> None:
        for value in two or values(hint):
            self.expect(self.asked(body(value))[0] == 200, f"{at} = {value!r} is refused")
        if two is not None:
            (_, asked, answered), (_, asked_then, answered_then) = (
                self.client.effect(self.path, body(value)) for value in two
            )
            in_answer = at.startswith("stream_options")
            self.expect(answered != answered_then if in_answer else asked != asked_then, f"{at} is ignored")

    def check_refused(self, at: str, hint: Any, body: Body) -> None:
        for value in values(hint):
            status, error = self.asked(body(value))
            if (at, value) in NOTHING_ELSE:
                self.expect(status == 200, f"{at} = {value!r}: {error}")
            else:
                self.expect(status == 400 and is_at(error, at), f"{at} = {value!r}: {status} {error}")

    def asked(self, body: dict[str, Any]) -> tuple[int, Any]:
        response = self.client.http.post(self.path, json=body)
        return response.status_code, None if response.status_code == 200 else response.json()["error"]

    def expect(self, fine: bool, complaint: str) -> None:
        if not fine:
            self.complaints.append(complaint)


def fields(kind: Any) -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        yield name, plain(hint)


def plain(hint: Any) -> Any:
    while get_origin(hint) in (Required, Annotated):
        hint = get_args(hint)[0]
    return hint


def is_list(hint: Any) -> bool:
    return isinstance(origin := get_origin(hint), type) and issubclass(origin, Iterable) and origin is not dict


def options(hint: Any) -> list[Any]:
    """A union's members."""
    return [plain(one) for one in get_args(hint)] if get_origin(hint) in (Union, UnionType) else []


def values(hint: Any) -> list[Any]:
    """Values that the type allows, other than the client's own objects."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if is_list(hint):
        return [[value] for value in values(plain(get_args(hint)[0]))]
    if hint is dict or get_origin(hint) is dict:
        return [{"a": 1}]
    simple: dict[Any, list[Any]] = {bool: [True, False], int: [1, 2], float: [0.5], str: ["words"], object: ["words"]}
    return simple.get(hint, [value for one in options(hint) for value in values(one)])


def smallest(hint: Any, place: str = "") -> Any:
    """A value with only its required fields."""
    if is_typeddict(hint):
        needed = NEEDED.get(place, NEEDED.get(hint.__name__, {}))
        required = [name for name, kind in get_type_hints(hint, include_extras=True).items() if is_required(kind)]
        return {name: smallest(kind, f"{place}.{name}") for name, kind in fields(hint) if name in required} | needed
    if is_list(hint):
        return [smallest(plain(get_args(hint)[0]), place)]
    if some := values(hint):
        return some[0]
    return next((smallest(one, place) for one in options(hint) if is_typeddict(one) or is_list(one)), None)


def is_required(hint: Any) -> bool:
    return get_origin(hint) is Required


def is_at(error: Any, place: str) -> bool:
    """Whether an error names that place, or one in it."""
    param = re.sub(r"\[\d+\]", "", error["param"] or "")
    return param == place or param.startswith(f"{place}.")


@pytest.mark.parametrize("path", TABLE)
def test_every_nested_field_does_something_or_is_refused_by_name(path: str) -> None:
    walk = Walk(path)
    assert "\n".join(walk.complaints) == ""
    assert walk.met == {(kind, field) for kind, honoured in TABLE[path].items() for field in honoured}
