"""Values written as text are typed by their schema."""

import json
from typing import Any

import pytest

from app.interface.functions.values import argument_types, value_json

ROOT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {"$ref": "#/$defs/object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "one": {"enum": ["1", "b"]},
        "seven": {"const": 7},
        "all": {"allOf": [{"type": ["string", "null"]}, {"type": "string"}]},
        "any": {},
        "ring": {"$ref": "#/properties/ring"},
        "nowhere": {"$ref": "#/$defs/none"},
        "half": {"anyOf": [{"type": "string"}, {}]},
    },
    "$defs": {"object": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "1", "1"),
        ("text", ' a "b"\n\\ ', ' a "b"\n\\ '),
        ("text", "null", "null"),
        ("count", " 12\n", 12),
        ("count", "12345678901234567890123", 12345678901234567890123),
        ("count", "many", "many"),
        ("count", "NaN", "NaN"),
        ("flag", "true", True),
        ("flag", "False", False),
        ("list", '["a", 1]', ["a", 1]),
        ("list", "[a", "[a"),
        ("object", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("object", "None", None),
        ("maybe", "null", None),
        ("maybe", "12", "12"),
        ("maybe", "None", "None"),
        ("either", "12", 12),
        ("either", "[1]", "[1]"),
        ("either", "twelve", "twelve"),
        ("one", "1", "1"),
        ("seven", "7", 7),
        ("all", "null", "null"),
        ("any", "12", 12),
        ("any", '"a"', '"a"'),
        ("any", "a", "a"),
        ("ring", "12", 12),
        ("nowhere", "a", "a"),
        ("half", "[1]", [1]),
        ("unknown", "true", True),
    ],
)
def test_strings_stay_text_and_all_else_is_json(key: str, text: str, value: Any) -> None:
    assert json.loads(value_json(text, argument_types(ROOT, key))) == value


@pytest.mark.parametrize("schema", [None, True, [], {"properties": []}, {"properties": {"a": True}}, {"$ref": 1}])
def test_schemas_that_say_nothing_allow_any_value(schema: Any) -> None:
    assert argument_types(schema, "a") == frozenset()
