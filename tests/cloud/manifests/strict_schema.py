"""A CRD's schema as strict JSON Schema, and its CEL rules.

Kubernetes drops fields that a CRD's schema does not have, without a word; here they are errors. Knows no particular
kind.
"""

from collections.abc import Iterator
from typing import Any

import celpy
import jsonschema  # type: ignore[import-untyped]
from celpy.adapter import json_to_cel

from tests.cloud.manifests.kubectl import Document


def version_schema(crd: Document, version: str) -> Document:
    """The schema of one version of a CustomResourceDefinition."""
    (schema,) = [each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"] if each["name"] == version]
    return dict(schema)


def strict(schema: Any) -> Any:
    """The same schema with every object closed that lists its properties."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        # Under "properties" the keys are names of fields, not of schemas.
        key: {name: strict(each) for name, each in value.items()} if key == "properties" else strict(value)
        for key, value in schema.items()
    }
    if "properties" in closed and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def schema_errors(schema: Document, document: Document) -> list[str]:
    """Where the document does not follow a strict schema."""
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def cel_errors(schema: Any, value: Any, old: Any = None, path: str = "$") -> Iterator[str]:
    """The messages of the schema's x-kubernetes-validations that do not hold.

    old: the value before a change; without it, rules about changes are left out, as when an object is created.
    """
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        environment = celpy.Environment()
        program = environment.program(environment.compile(rule["rule"]))
        activation = {"self": json_to_cel(value), "oldSelf": json_to_cel(old)}
        if not program.evaluate(activation):
            yield f"{path}: {rule['message']}"
    if isinstance(value, dict):
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if isinstance(inner, dict):
                before = old.get(name) if isinstance(old, dict) else None
                yield from cel_errors(inner, each, before, f"{path}.{name}")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, each in enumerate(value):
            yield from cel_errors(schema["items"], each, None, f"{path}[{index}]")
