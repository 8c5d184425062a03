"""Clients' JSON schemas: limited in size and depth, and closed to properties that they do not name."""

from typing import Any

import orjson

from app.interface.request import errors

MAX_SCHEMA_BYTES = 65536
MAX_SCHEMA_LEVELS = 64
_COMBINED = frozenset({"not", "if", "then", "else", "$dynamicRef", "dependentSchemas"})
_BESIDE = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_OPEN = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"})


def bounded_schema(schema: Any, field: str) -> str:
    """Returns the schema as JSON. Raises ApiError (400) naming the field if it is too deep or too large."""
    if nesting_levels(schema) > MAX_SCHEMA_LEVELS:
        raise errors.invalid(f"'{field}': a schema may be {MAX_SCHEMA_LEVELS} levels deep.", field, "invalid_value")
    text = orjson.dumps(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise errors.invalid(f"'{field}': a schema may have {MAX_SCHEMA_BYTES} bytes.", field, "invalid_value")
    return text.decode()


def nesting_levels(value: Any) -> int:
    """Returns how deep lists and objects are nested; 0 for a plain value."""
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


def closed_schema(schema: Any) -> Any:
    """Forbids properties that the schema does not name, unless it allows them: small models invent some."""
    return schema if _combines(schema) else _with_closed_objects(schema)


def _combines(value: Any) -> bool:
    """Whether objects follow several schemas at once: one may name a property that another does not."""
    if isinstance(value, dict):
        parts = value.get("allOf")
        combines = value.keys() & _COMBINED or (isinstance(parts, list) and len(parts) > 1)
        if combines or (value.keys() & _BESIDE and "properties" in value):
            return True
        value = list(value.values())
    return isinstance(value, list) and any(map(_combines, value))


def _with_closed_objects(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(inner := schema.get(key), dict):
            closed[key] = {name: _with_closed_objects(value) for name, value in inner.items()}
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        if isinstance(inner := schema.get(key), list):
            closed[key] = [_with_closed_objects(value) for value in inner]
    for key in ("items", "additionalProperties"):
        if key in schema:
            closed[key] = _with_closed_objects(schema[key])
    if not schema.keys() & _OPEN and _names_all(schema):
        closed["additionalProperties"] = False
    return closed


def _names_all(schema: dict[str, Any]) -> bool:
    """Whether an object's schema names properties, among them all that it requires."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def moved_definitions(value: Any, place: str) -> Any:
    """Rewrites the schema's references for its new place in a larger schema."""
    if isinstance(value, dict):
        return {
            key: place + item[1:]
            if key == "$ref" and isinstance(item, str) and item[:1] == "#"
            else moved_definitions(item, place)
            for key, item in value.items()
        }
    return [moved_definitions(item, place) for item in value] if isinstance(value, list) else value
