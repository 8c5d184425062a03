"""The OpenAPI document matches the service, and the service handles every parameter of OpenAI's client."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import openai
import pytest
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from openai.resources.embeddings import Embeddings
from openai.resources.responses import Responses
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from starlette.testclient import TestClient

from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker
from tests.app.service import http_app
from tests.app.tiny_model import HIDDEN_SIZE, reference_tokenizer

TOKENS = tuple(reference_tokenizer().encode("Hello STOP and more").ids)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
FUNCTION = {"name": "f", "parameters": SCHEMA}
API_PAGES = sorted((Path(__file__).parents[4] / "docs").glob("api*.md"))
TRANSPORT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
DESCRIBES = {"user", "metadata", "safety_identifier", "prompt_cache_key"}
"""Fields that describe the caller or the call, without effect (docs/api*.md)."""


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    if request.pooling is not None:
        return [TokenDelta((), "length", 0, None, PromptResult(embedding=np.ones(HIDDEN_SIZE, np.float32)))]
    return [TokenDelta(TOKENS, "length")]


class Client:
    """The service over a fake worker; records the worker's requests and the answers."""

    def __init__(self, **options: Any) -> None:
        self.worker = FakeWorker(script)
        self.http = TestClient(http_app(self.worker.generate, **options))

    def effect(self, path: str, body: dict[str, Any]) -> tuple[int, Any, str]:
        self.worker.requests.clear()
        response = self.http.post(path, json=body)
        asked = [re.sub(r"-[0-9a-f]{32}|_[0-9a-f]{32}", "", repr(request)) for request in self.worker.requests]
        answered = re.sub(r'[a-z]+[-_][0-9a-f]{32}|"(created|created_at|completed_at)":[0-9]+', "", response.text)
        return response.status_code, asked, answered


CLIENT = Client()
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PATHS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletions, chat_create_params.CompletionCreateParamsNonStreaming, CHAT),
    "/v1/completions": (
        Completions,
        completion_create_params.CompletionCreateParamsNonStreaming,
        {"model": "tiny", "prompt": "hi"},
    ),
    "/v1/embeddings": (Embeddings, embedding_create_params.EmbeddingCreateParams, {"model": "tiny", "input": "hi"}),
    "/v1/responses": (
        Responses,
        response_create_params.ResponseCreateParamsNonStreaming,
        {"model": "tiny", "input": "hi"},
    ),
}
TOOLS = [{"type": "function", "function": FUNCTION}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
HONOURED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": {"messages": [{"role": "user", "content": "other"}]},
        "model": {"model": "other"},
        "frequency_penalty": {"frequency_penalty": 0.5},
        "logit_bias": {"logit_bias": {"5": 1}},
        "logprobs": {"logprobs": True},
        "max_completion_tokens": {"max_completion_tokens": 7},
        "max_tokens": {"max_tokens": 7},
        "n": {"n": 2},
        "parallel_tool_calls": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        "presence_penalty": {"presence_penalty": 0.5},
        "response_format": {"response_format": FORMAT},
        "seed": {"seed": 3},
        "stop": {"stop": "STOP"},
        "stream": {"stream": True},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
        "temperature": {"temperature": 0.5},
        "tool_choice": {"tools": TOOLS, "tool_choice": "none"},
        "tools": {"tools": TOOLS},
        "top_logprobs": {"logprobs": True, "top_logprobs": 3},
        "top_p": {"top_p": 0.5},
    },
    "/v1/completions": {
        "model": {"model": "other"},
        "prompt": {"prompt": "other"},
        "best_of": {"best_of": 2},
        "echo": {"echo": True},
        "frequency_penalty": {"frequency_penalty": 0.5},
        "logit_bias": {"logit_bias": {"5": 1}},
        "logprobs": {"logprobs": 1},
        "max_tokens": {"max_tokens": 7},
        "n": {"n": 2},
        "presence_penalty": {"presence_penalty": 0.5},
        "seed": {"seed": 3},
        "stop": {"stop": "STOP"},
        "stream": {"stream": True},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
        "temperature": {"temperature": 0.5},
        "top_p": {"top_p": 0.5},
    },
    "/v1/embeddings": {
        "input": {"input": "other"},
        "model": {"model": "other"},
        "encoding_format": {"encoding_format": "base64"},
    },
    "/v1/responses": {
        "include": {"include": ["message.output_text.logprobs"]},
        "input": {"input": "other"},
        "instructions": {"instructions": "Be brief."},
        "max_output_tokens": {"max_output_tokens": 7},
        "metadata": {"metadata": {"a": "b"}},
        "model": {"model": "other"},
        "parallel_tool_calls": {
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        "stream": {"stream": True},
        "temperature": {"temperature": 0.5},
        "text": {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        "tool_choice": {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"},
        "tools": {"tools": [{"type": "function", **FUNCTION}]},
        "top_logprobs": {"top_logprobs": 3},
        "top_p": {"top_p": 0.5},
    },
}
"""Each parameter with an effect, with a body in which it has one."""


def parameters() -> Iterator[tuple[str, str]]:
    for path, (resource, _, _) in PATHS.items():
        for name in inspect.signature(resource.create).parameters.keys() - TRANSPORT:
            yield path, name


@pytest.mark.parametrize(("path", "name"), sorted(parameters()))
def test_every_parameter_of_the_client_does_something_or_is_refused_by_name(path: str, name: str) -> None:
    _, hints, body = PATHS[path]
    if name in HONOURED[path]:
        fields = HONOURED[path][name]
        without = {field: value for field, value in fields.items() if field != name}
        assert CLIENT.effect(path, body | fields) != CLIENT.effect(path, body | without)
        return
    if name in DESCRIBES:
        value = {"a": "b"} if name == "metadata" else "somebody"
        assert CLIENT.effect(path, body | {name: value})[:2] == CLIENT.effect(path, body)[:2]
        return
    tried = [*samples(get_type_hints(hints)[name]), {"some": "object"}, 3, "words", ["list"]]
    refused = []
    for value in tried:
        response = CLIENT.http.post(path, json=body | {name: value})
        if response.status_code == 200:
            # It asks for the default behaviour: nothing else is accepted.
            assert (name, value) in NOTHING_ELSE
            continue
        assert response.status_code == 400, value
        error = response.json()["error"]
        assert re.match(rf"{name}\b", error["param"]), error
        refused.append(value)
    assert refused


NOTHING_ELSE: list[tuple[str, Any]] = [
    ("background", False),
    ("dimensions", HIDDEN_SIZE),
    ("function_call", "none"),
    ("parallel_tool_calls", True),
    *(("reasoning_effort", effort) for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")),
    *(("max_tool_calls", calls) for calls in (1, 2, 3)),
    *(("service_tier", tier) for tier in ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")),
    *(("prompt_cache_retention", kept) for kept in ("in_memory", "in-memory", "24h")),
    ("store", False),
    ("truncation", "auto"),  # where all fits
    ("truncation", "disabled"),
    *(("verbosity", verbosity) for verbosity in ("low", "medium", "high")),
]
"""Values without effect: they ask for the default, or docs/api*.md says so."""


def samples(hint: Any) -> list[Any]:
    """Values that the client's type allows, as far as it tells."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if hint is bool:
        return [True, False]
    if hint is int:
        return [1, 2]
    if hint is str:
        return ["words"]
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        return [value for each in get_args(hint) for value in samples(each)]
    return []


def test_the_table_names_parameters_of_the_client_only() -> None:
    for path, (resource, _, _) in PATHS.items():
        assert HONOURED[path].keys() <= inspect.signature(resource.create).parameters.keys()
    assert openai.__version__.split(".")[0] == "3"


# --- the document --------------------------------------------------------------------------------------------------


def document() -> Any:
    return CLIENT.http.get("/openapi.json").json()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere() -> None:
    described = document()
    names = {reference.removeprefix("#/components/schemas/") for reference in references(described)}
    assert names <= described["components"]["schemas"].keys()


def test_every_path_and_field_is_documented() -> None:
    described = document()
    spans = [span for page in API_PAGES for span in re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8"))]
    named = {one for span in spans for one in re.findall(r"/[\w/{}-]+", span)}
    assert PATHS.keys() <= described["paths"].keys() <= named
    for path, (resource, _, _) in PATHS.items():
        reference = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = described["components"]["schemas"][reference.rpartition("/")[2]]
        assert schema["additionalProperties"] is False
        documented = schema["properties"].keys()
        for name in inspect.signature(resource.create).parameters.keys() - TRANSPORT - documented:
            response = CLIENT.http.post(path, json=PATHS[path][2] | {name: "x"})
            assert response.json()["error"]["code"] == "unknown_parameter", name


def test_unsupported_fields_are_documented_as_such() -> None:
    properties = document()["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert properties["audio"]["type"] == "null"
    assert properties["store"]["enum"] == [False, None]


def test_a_key_is_documented_where_it_is_needed() -> None:
    with TestClient(http_app(FakeWorker(script).generate, api_keys=("key",))) as client:
        described = client.get("/openapi.json").json()
        assert client.get("/docs").status_code == 200
    assert described["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    for probe in ("/health", "/livez", "/readyz"):
        assert "security" not in described["paths"][probe]["get"]
    assert "401" in described["paths"]["/v1/completions"]["post"]["responses"]


def test_the_page_loads_nothing_and_names_every_object() -> None:
    response = CLIENT.http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|src=|@import|url\(|https?://", response.text)
    for name in document()["components"]["schemas"]:
        assert f'id="{name}"' in response.text


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/health", "/metrics", "/tokenize"])
def test_other_methods(path: str) -> None:
    assert CLIENT.http.delete(path).status_code == 405
