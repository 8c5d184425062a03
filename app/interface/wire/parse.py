"""Parses a request body to a validated model, or raises a 400 that names the invalid field.

The body may be hostile: not JSON, nested too deeply, lone surrogates, endless numbers. It knows pydantic's errors and
nothing of what the fields mean.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from app.interface.request import errors

Request = TypeVar("Request", bound=BaseModel)


def parse(model: type[Request], body: bytes) -> Request:
    """Validates a JSON body. Raises ApiError (400)."""
    try:
        # orjson refuses NaN, infinities, lone surrogates and more than 1024 levels.
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise errors.invalid(f"The request body is not valid JSON: {error.msg}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise errors.invalid("The request body should be a JSON object.", code="invalid_json")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _as_api_error(value, error) from None


def _as_api_error(body: dict[str, Any], error: ValidationError) -> errors.ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _field_name(body, first["loc"])
    match first["type"]:
        case "missing":
            return errors.invalid(f"'{param}' is missing.", param, "missing_required_parameter")
        case "extra_forbidden":
            return errors.invalid(f"'{param}' is not a parameter of this request.", param, "unknown_parameter")
        case "unsupported":
            return errors.invalid(f"'{param}' {first['msg']}.", param, "unsupported_parameter")
        case _:
            reason = first["msg"].removeprefix("Input ")
            return errors.invalid(f"'{param}': {reason}.", param, "invalid_value")


def _field_name(body: dict[str, Any], location: Sequence[str | int]) -> str:
    """Formats the field's path as a client would write it, `messages[0].content`, without pydantic's own steps."""
    name = ""
    value: Any = body
    for depth, step in enumerate(location):
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            name, value = f"{name}[{step}]", value[step]
        elif isinstance(value, dict) and (step in value or depth == len(location) - 1) and step != "[key]":
            shown = str(step) if len(str(step)) <= 64 else f"{str(step)[:64]}…"
            name, value = f"{name}.{shown}" if name else shown, value.get(step)
    return name or "body"
