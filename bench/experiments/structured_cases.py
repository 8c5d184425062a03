"""The schemas for measuring structured output, each with a matching output, and hostile schemas."""

from typing import Any

_TEXT = "A quiet street by the sea, where old boats lie on the sand and gulls wait for the evening's catch."
_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["new", "known", "friend"]}},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
_TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["label", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CASES: dict[str, tuple[Any, Any]] = {
    "any object": (
        {"type": "object"},
        {"title": "Notes", "body": _TEXT, "numbers": [1, 2.5, -3e4], "more": {"a": None}},
    ),
    "person": (_PERSON, {"name": "Jane Doe", "age": 30, "email": "jane@example.org", "tags": ["new", "friend"]}),
    "people": (
        {"type": "array", "items": _PERSON},
        [{"name": f"Jane {i}", "age": 30 + i, "email": None, "tags": ["known"]} for i in range(8)],
    ),
    "long text": (
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        {"text": " ".join([_TEXT] * 4)},
    ),
    "bounded text": (
        {"type": "object", "properties": {"text": {"type": "string", "maxLength": 200}}, "required": ["text"]},
        {"text": _TEXT},
    ),
    "date and pattern": (
        {
            "type": "object",
            "properties": {"day": {"type": "string", "format": "date"}, "code": {"pattern": "^[A-Z]{3}-[0-9]{4}$"}},
            "required": ["day", "code"],
            "additionalProperties": False,
        },
        {"day": "2026-11-21", "code": "ABC-1234"},
    ),
    "tree": (
        _TREE,
        {"label": "root", "children": [{"label": _TEXT[:30], "children": []}, {"label": "b", "children": []}]},
    ),
    "a call of one of 32 functions": (
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"name": {"const": f"function_{i}"}, "arguments": _PERSON},
                        "required": ["name", "arguments"],
                        "additionalProperties": False,
                    }
                    for i in range(32)
                ]
            },
        },
        [{"name": "function_17", "arguments": {"name": "Jo", "age": 3, "email": None, "tags": []}}],
    ),
}
HOSTILE: dict[str, Any] = {
    "catastrophic pattern": {"type": "string", "pattern": "^(a+)+$"},
    "states without end": {"type": "string", "pattern": "^(.*a.{20}b){50}$"},
    "a million characters": {"type": "string", "minLength": 100_000, "maxLength": 1_000_000},
    "intersections": {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(8)]} for i in range(8)]},
    "a thousand fields": {"type": "object", "properties": {f"field{i}": {"type": "string"} for i in range(1000)}},
    "a thousand names": {"enum": [f"value number {i}" for i in range(1000)]},
}
