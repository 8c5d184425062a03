"""Converts values that models write as plain text to JSON, typed by the schema of a function's arguments.

A string stays text; anything else is parsed as JSON. It knows no dialect.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

_MAX_REFERENCES = 16
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NAMES = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}


def argument_types(schema: Any, key: str) -> frozenset[str]:
    """Returns the types that an argument may have by an object's schema; integers are numbers. Empty: any."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    one = properties.get(key) if isinstance(properties, Mapping) else None
    return json_types(one, schema)


def json_types(schema: Any, root: Any) -> frozenset[str]:
    """Returns the types that a schema allows. root: the schema with its definitions. Empty: any."""
    schema = resolved(schema, root)
    if schema is None:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        kind = [kind]
    if isinstance(kind, list) and all(isinstance(one, str) for one in kind):
        return frozenset("number" if one == "integer" else one for one in kind)
    if "const" in schema:
        return frozenset([_type_of(schema["const"])])
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_type_of, schema["enum"]))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            each = [json_types(one, root) for one in schema[key]]
            return frozenset().union(*each) if all(each) else frozenset()
    if isinstance(schema.get("allOf"), list):
        each = [types for one in schema["allOf"] if (types := json_types(one, root))]
        return frozenset.intersection(*each) if each else frozenset()
    return frozenset()


def resolved(schema: Any, root: Any) -> Mapping[str, Any] | None:
    """Follows references; returns None if the schema is missing or not an object."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return None
        place = schema.get("$ref")
        if not isinstance(place, str):
            return schema
        schema = root
        for name in place.split("/")[1:] if place.startswith("#") else [""]:
            name = name.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return None


def value_json(text: str, types: frozenset[str]) -> str:
    """Returns the JSON of a value written as `text`. Text that is not JSON of these types is a string."""
    if types == {"string"}:
        return string_json(text)
    core = text.strip()
    try:
        value = orjson.loads(core)
    except ValueError:
        if core in _PYTHON and "string" not in types:
            return _PYTHON[core]
        return string_json(text)
    if "string" in types and _type_of(value) not in types - {"string"}:
        return string_json(text)
    return core if types or not isinstance(value, str) else string_json(text)


def string_json(text: str) -> str:
    """Returns a JSON string; without its quotes it may be a part of one."""
    return json.dumps(text, ensure_ascii=False)


def _type_of(value: Any) -> str:
    return "null" if value is None else _NAMES[type(value)]
