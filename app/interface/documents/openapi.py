"""Builds the OpenAPI document from the models that validate requests and shape answers. It knows no route's code."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFERENCE = "#/components/schemas/{model}"
_WHY = {
    400: "A field is wrong or not supported: `param` names it; or prompt and output cannot fit the context.",
    401: "A key is needed.",
    403: "Only administrators may do that.",
    404: "No such model.",
    413: "The body is too large.",
    415: "The body does not say that it is JSON.",
    429: "Every worker's queue is full; `Retry-After` says when to try again.",
    500: "A bug of the service; the message has an id that is in its log.",
    503: "No worker is up; `Retry-After` says when to try again.",
}


class ErrorDetails(BaseModel):
    """The details of a failure."""

    message: str
    type: str
    param: str | None
    """The field that is wrong."""
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every failure."""

    error: ErrorDetails


class AnthropicErrorDetails(BaseModel):
    """The details of a failure, in Anthropic's form."""

    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    """The body of every failure of `/v1/messages`, and where the client sends `anthropic-version`."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetails
    request_id: str


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint and its description."""

    method: str
    path: str
    """In FastAPI's notation: a variable may be `{name:path}`."""
    endpoint: Callable[..., Any]
    summary: str
    answer: type[BaseModel] | str
    """The answer of status 200: JSON of that model, or another media type."""
    request: type[BaseModel] | None = None
    computes: bool = False
    """Whether it asks a worker."""
    streams: bool = False
    """Whether it can answer with server-sent events."""
    open: bool = False
    """Whether it needs no key."""

    admin: bool = False
    """Whether only administrators may use it."""
    refuses: Mapping[int, str] = field(default_factory=dict)
    """Further statuses of its failures, and those with another meaning here."""
    is_form: bool = False
    """Whether the request is a form with a file (multipart/form-data), not JSON."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Query parameters with their descriptions."""

    unavailable: type[BaseModel] | None = None
    """The answer of status 503, if that is not a failure."""

    failure: type[BaseModel] = ErrorAnswer
    """The body of its failures."""

    @property
    def shown_path(self) -> str:
        """In OpenAPI's notation."""
        return self.path.replace(":path}", "}")


def document(routes: Sequence[Route], *, has_keys: bool) -> dict[str, Any]:
    """Builds the OpenAPI 3.1 document."""
    requests = [route.request for route in routes if route.request is not None]
    answers: list[type[BaseModel]] = [route.failure for route in routes]
    answers += [route.answer for route in routes if not isinstance(route.answer, str)]
    answers += [route.unavailable for route in routes if route.unavailable is not None]
    schemas = _schemas(tuple(dict.fromkeys(requests)), tuple(dict.fromkeys(answers)))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.shown_path, {})[route.method.lower()] = _operation(route, has_keys=has_keys)
    components: dict[str, Any] = {"schemas": schemas}
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Redoubt",
            "version": "1",
            "description": "OpenAI's API on the CPUs that you own. A field is honoured or refused by name, never "
            "ignored; `null` counts as absent.",
        },
        "paths": paths,
        "components": components,
    }


@functools.cache
def _schemas(requests: tuple[type[BaseModel], ...], answers: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    """Returns the models' JSON Schemas by name; do not modify. Cached: pydantic takes longer than all else here."""
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    models += [(model, "validation") for model in requests]
    models += [(model, "serialization") for model in answers]
    _, schemas = models_json_schema(models, ref_template=_REFERENCE)
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions


def _operation(route: Route, *, has_keys: bool) -> dict[str, Any]:
    if isinstance(route.answer, str):
        content: dict[str, Any] = {route.answer: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": _reference(route.answer)}}
    if route.streams:
        # Before OpenAPI 3.2 an event stream's schema is that of one event.
        data = {"type": "string", "description": "JSON; in completions and chat the last one is `[DONE]`."}
        content["text/event-stream"] = {
            "schema": {
                "type": "object",
                "description": 'With `"stream": true`: events.',
                "properties": {"event": {"type": "string"}, "data": data},
                "required": ["data"],
            }
        }
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{route.endpoint.__name__}",
        "responses": {"200": {"description": "Done.", "content": content}},
    }
    for status in _statuses(route, has_keys=has_keys):
        body = {"application/json": {"schema": _reference(route.failure)}}
        why = route.refuses.get(status) or _WHY[status]
        operation["responses"][str(status)] = {"description": why, "content": body}
    if route.unavailable is not None:
        content = {"application/json": {"schema": _reference(route.unavailable)}}
        operation["responses"]["503"] = {"description": "No worker is up.", "content": content}
    if route.request is not None:
        media_type = "multipart/form-data" if route.is_form else "application/json"
        body = {media_type: {"schema": _reference(route.request)}}
        operation["requestBody"] = {"required": True, "content": body}
    if "{" in route.path:
        name = route.shown_path.partition("{")[2].partition("}")[0]
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    for name, meaning in route.query.items():
        parameter = {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
        operation.setdefault("parameters", []).append(parameter)
    if has_keys and not route.open:
        operation["security"] = [{"key": []}]
    return operation


def _statuses(route: Route, *, has_keys: bool) -> list[int]:
    statuses = [401] if has_keys and not route.open else []
    if route.request is not None:
        statuses += [400, 404, 413, 415, 500]
    elif "{" in route.path:
        statuses += [404]
    if route.computes:
        statuses += [429, 503]
    statuses += [403] if route.admin else []
    return sorted({*statuses, *route.refuses})


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}
