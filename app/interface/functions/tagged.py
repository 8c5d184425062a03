r"""Two dialects whose calls are tags: values are text there, and only a schema tells what they are.

    <tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>       Qwen3-Coder, Qwen3.5
    <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>                GLM 4.5; 4.7 without lines

A grammar holds a call to its schema in these tags where they can express it: an object with properties, each a text,
one of some texts, or JSON that is no string. A function with another schema is called in JSON between the same marks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.interface.functions.dialect import (
    MAX_HEAD_CHARACTERS,
    NAME,
    CallableFunction,
    CallStart,
    Dialect,
    Spelling,
    json_rule,
    quoted,
)
from app.interface.functions.tagged_call import TaggedCall, Tags
from app.interface.functions.values import argument_types, json_types, resolved

_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_WORDS = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"})
"""Keys that do not restrict values."""


class Tagged(Dialect):
    """One call between the same marks as Hermes."""

    mark = "<tool_call>"
    end_mark: str = "</tool_call>"

    def __init__(self, name: str, head: tuple[str, str], tags: Tags) -> None:
        """head: the strings around a function's name."""
        self.name, self.tags = name, tags
        inner = (tags.key, tags.after_key, tags.value, tags.after_value)
        self.inner_marks = tuple(tag for tag in inner if re.fullmatch("<.*>", tag))
        self._before, self._after = head
        after = re.escape(self._after) or f"(?=\\s*(?:{re.escape(tags.key)}|{re.escape(self.end_mark)}))"
        self._head = re.compile(f"{re.escape(self._before)}({NAME}){after}")
        self._end = f" SPACE? {quoted(tags.ends[0])}" if tags.ends[0] != self.end_mark else ""

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        head = self._head.match(text)
        if head is None:
            return None
        schema = schemas.get(head[1])
        return CallStart(head.end(), TaggedCall(head[1], self.tags, lambda key: argument_types(schema, key)))

    def may_match_call(self, text: str) -> bool:
        if len(text) >= MAX_HEAD_CHARACTERS or self._before.startswith(text):
            return len(text) < MAX_HEAD_CHARACTERS
        if not text.startswith(self._before):
            return False
        name = re.match(NAME, text[len(self._before) :])
        rest = "" if name is None else text[len(self._before) + name.end() :]
        following = (self._after,) if self._after else (self.tags.key, self.end_mark)
        return name is not None and any(tag.startswith(rest.lstrip()) for tag in following)

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        name, tags = self.name, self.tags
        calls: list[str] = []
        rules: list[str] = []
        for i, function in enumerate(functions):
            parameters = _parameters(function.schema, tags)
            if parameters is None:
                continue
            calls.append(f"{name}_{i}")
            listed = "".join(
                f" (SPACE? {name}_{i}_{j}){'' if one.required else '?'}" for j, one in enumerate(parameters)
            )
            if not parameters and _is_open(function.schema):
                listed = f" (SPACE? {name}_any)*"
            rules.append(f"{name}_named_{i}: {quoted(function.name + self._after)}{listed}{self._end}")
            rules.append(f"{name}_{i}: {f'{quoted(self._before)} ' if self._before else ''}{name}_named_{i}")
            rules += [f"{name}_{i}_{j}: {self._value(spelling, one)}" for j, one in enumerate(parameters)]
        begin = f" SPACE? ({spelling.mark(tags.value)})" if tags.value else ""
        tokens = "".join(f" | /(.|\\n)*/ {token}" for token in spelling.tokens(tags.after_value))
        return [
            f"{name}: found_{name} {name}_call {spelling.more(f'SPACE? mark_{name} {name}_call')} SPACE?",
            f"{name}_call: SPACE? ({' | '.join(['call', *calls])}) SPACE? ({spelling.mark(self.end_mark)})",
            f"{name}_begin: ({spelling.mark(tags.after_key)}){begin}",
            f"{name}_any: ({spelling.mark(tags.key)}) /[^<>\\n]+/ {name}_begin {name}_text",
            f"{name}_text: {name}_text_end{tokens}",
            f"{name}_text_end[lazy]: /(.|\\n)*/ {quoted(tags.after_value)}",
            *rules,
        ]

    def _value(self, spelling: Spelling, parameter: "_Parameter") -> str:
        """Returns the rule of one argument."""
        tags, end = self.tags, f"({spelling.mark(self.tags.after_value)})"
        begin = f"({spelling.mark(tags.key)}) {quoted(parameter.key)} {self.name}_begin"
        if parameter.schema is not None:
            return f"{begin} SPACE? ({json_rule(parameter.schema)}) SPACE? {end}"
        if parameter.choices is None:
            return f"{begin} {self.name}_text"
        line = r' "\n"?' if tags.in_lines else ""
        return f"{begin}{line} ({' | '.join(map(quoted, parameter.choices))}){line} {end}"


@dataclass(frozen=True, slots=True)
class _Parameter:
    """An argument that tags can express: JSON of a schema, one of some texts, or any text."""

    key: str
    required: bool
    schema: Mapping[str, Any] | None = None
    choices: tuple[str, ...] | None = None


def _is_open(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties", True) is not False


def _parameters(schema: Mapping[str, Any], tags: Tags) -> list[_Parameter] | None:
    """Returns the arguments of a function, in order; None if tags can't express the schema."""
    properties = schema.get("properties") or {}
    if not schema.keys() <= _OF_OBJECTS | _WORDS or schema.get("type", "object") != "object":
        return None
    if not isinstance(properties, Mapping) or (properties and _is_open(schema)):
        return None
    if isinstance(schema.get("additionalProperties"), Mapping):
        return None
    required = schema.get("required") or []
    if not isinstance(required, list) or any(name not in properties for name in required):
        return None
    found = [_parameter(key, one, key in required, schema, tags) for key, one in properties.items()]
    return None if None in found else [one for one in found if one is not None]


def _parameter(key: str, schema: Any, required: bool, root: Mapping[str, Any], tags: Tags) -> _Parameter | None:
    types = json_types(schema, root)
    if re.search(r"[<>\s]", key) or not key or not types or not _refers_to_definitions(schema):
        return None
    if "string" not in types:
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return _Parameter(key, required, schema={**definitions, **schema})
    if types - {"string", "null"}:
        return None
    parts = list(_alternatives(schema, root))
    if any(part is None for part in parts):
        return None
    texts = [part for part in parts if part is not None and json_types(part, root) != {"null"}]
    choices: list[Any] = []
    for text in texts:
        if not text.keys() <= {"type", "enum", "const"} | _WORDS:
            return None
        choices += [text["const"]] if "const" in text else text.get("enum", [])
    if not choices:
        return _Parameter(key, required)
    names = tuple("null" if one is None else one for one in choices) + (("null",) if len(texts) < len(parts) else ())
    if any(not isinstance(one, str) or tags.after_value in one for one in names):
        return None
    return _Parameter(key, required, choices=names)


def _alternatives(schema: Any, root: Any) -> Iterator[Mapping[str, Any] | None]:
    """Yields the alternatives of a schema; None for what is not a plain list of alternatives."""
    one = resolved(schema, root)
    listed = None if one is None else one.get("anyOf", one.get("oneOf"))
    if one is None or not isinstance(listed, list):
        yield one
    elif not one.keys() <= {"anyOf", "oneOf"} | _WORDS:
        yield None
    else:
        for each in listed:
            yield resolved(each, root)


def _refers_to_definitions(value: Any) -> bool:
    """Whether no reference leaves the definitions, which are copied into each argument's schema."""
    if isinstance(value, Mapping):
        place = value.get("$ref")
        if isinstance(place, str) and not place.startswith(("#/$defs/", "#/definitions/")):
            return False
        value = list(value.values())
    return not isinstance(value, list) or all(map(_refers_to_definitions, value))


class Unmarked(Dialect):
    """Qwen's calls without their first mark, which models forget; only in a grammar that has `QWEN`'s rules, too."""

    name = "unmarked"
    mark = "<function="
    end_mark: str = "</tool_call>"

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        numbers = [i for i, one in enumerate(functions) if _parameters(one.schema, QWEN.tags) is not None]
        if not numbers:
            return ['unmarked: found_unmarked "</function>"']  # allows no call and no other text
        end = f"(SPACE? ({spelling.mark(self.end_mark)}))?"
        calls = " | ".join(f"qwen_named_{i}" for i in numbers)
        return [
            f"unmarked: found_unmarked ({calls}) {end} {spelling.more('SPACE? unmarked_more')} SPACE?",
            f"unmarked_more: mark_unmarked ({calls}) {end} | mark_qwen qwen_call",
        ]

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        start = QWEN.match_call(self.mark + text, schemas)
        return None if start is None else CallStart(start.length - len(self.mark), start.reader)

    def may_match_call(self, text: str) -> bool:
        return QWEN.may_match_call(self.mark + text)


QWEN = Tagged(
    "qwen",
    ("<function=", ">"),
    Tags("<parameter=", ">", "", "</parameter>", ("</function>", "</tool_call>"), in_lines=True),
)
GLM = Tagged(
    "glm",
    ("", ""),
    Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", ("</tool_call>",), in_lines=False),
)
UNMARKED = Unmarked()
