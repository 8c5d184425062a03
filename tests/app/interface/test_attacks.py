"""Hostile requests against the whole HTTP application: refused by name, in few words, and no worker is asked.

What needs real workers is in `tests/service/test_attacks.py`; bytes that are not a request in
`test_ingress_fuzz.py`; hostile schemas in `test_constraints.py`; sockets in `test_ingress_sockets.py`.
"""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.messages.failures import InvalidRequestError
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, never
from tests.app.tiny_model import CONTROL, reference_tokenizer, tiny_model

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "hi"}
EMBEDDING: dict[str, Any] = {"model": "tiny", "input": "hi"}
BODIES = {"chat/completions": CHAT, "completions": COMPLETION, "responses": RESPONSE, "embeddings": EMBEDDING}
TEN_MEGABYTES = "a" * 10_000_000
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CLIENT = TestClient(http_app(never, max_body_bytes=64 << 20))


def refusal(path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The error's object; it is short, whatever was sent."""
    response = CLIENT.post(f"/v1/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text[:500]
    assert len(response.content) < 1000
    error: dict[str, Any] = response.json()["error"]
    assert error["message"]
    return error


ABSURD = [2**31, 2**63, 10**30, -2, -(2**63), 1e308, -0.5, True, "9", [1], {}]


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: f"{value!r:.20}")
@pytest.mark.parametrize(
    ("path", "field"),
    [
        *[("chat/completions", field) for field in ("n", "max_tokens", "max_completion_tokens", "top_logprobs")],
        *[("completions", field) for field in ("n", "max_tokens", "best_of", "logprobs", "min_tokens")],
        *[("responses", field) for field in ("max_output_tokens", "top_logprobs")],
        *[("chat/completions", field) for field in ("num_beams", "beam_width", "num_beam_groups", "diversity_penalty")],
        *[("completions", field) for field in ("num_beams", "beam_width", "penalty_alpha", "length_penalty")],
    ],
)
def test_absurd_counts_are_refused(path: str, field: str, value: Any) -> None:
    extra = {"logprobs": True} if field == "top_logprobs" and path == "chat/completions" else {}
    error = refusal(path, BODIES[path] | extra | {field: value})
    # orjson refuses integers beyond 64 bits, without knowing the field.
    assert error["param"] == field or error["code"] == "invalid_json"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [[], "text", 5, None, True, [CHAT], [[[]]]], ids=repr)
def test_a_body_that_is_no_object(path: str, body: Any) -> None:
    assert refusal(path, body)["code"] == "invalid_json"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "1_0", "١"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "n", "user"])
def test_numbers_that_are_none(path: str, number: str, field: str) -> None:
    raw = json.dumps(BODIES[path])[:-1] + f', "{field}": {number}}}'
    response = CLIENT.post(f"/v1/{path}", content=raw.encode(), headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"properties": {"a": leaf}}
    return leaf


@pytest.mark.parametrize("levels", [70, 300, 900])
@pytest.mark.parametrize("place", ["response_format", "tools", "logit_bias", "metadata", "stop", "messages", "extra"])
def test_deep_json(place: str, levels: int) -> None:
    deep: Any = nested(levels // 2, {})
    fields: dict[str, Any] = {place: deep}
    if place == "response_format":
        fields = {place: {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}}
    elif place == "tools":
        fields = {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}],
            "tool_choice": "required",
        }
    error = refusal("chat/completions", CHAT | fields)
    assert (error["param"] or place).startswith(place)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"], ids=ascii)
def test_lone_surrogates(path: str, text: str) -> None:
    field = next(name for name in BODIES[path] if name != "model")
    value = [{"role": "user", "content": text}] if field == "messages" else text
    assert refusal(path, BODIES[path] | {field: value})["code"] == "invalid_json"
    assert refusal(path, BODIES[path] | {text: 1})["code"] == "invalid_json"


LONG_FIELDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": "user", "content": TEN_MEGABYTES}]},
    "messages[0].name": {"messages": [{"role": "user", "content": "x", "name": TEN_MEGABYTES}]},
    "messages[0].role": {"messages": [{"role": TEN_MEGABYTES, "content": "x"}]},
    "messages[0].tool_call_id": {"messages": [{"role": "tool", "content": "x", "tool_call_id": TEN_MEGABYTES}]},
    "stop": {"stop": TEN_MEGABYTES},
    "user": {"user": TEN_MEGABYTES},
    "prompt_cache_key": {"prompt_cache_key": TEN_MEGABYTES},
    "metadata.a": {"metadata": {"a": TEN_MEGABYTES}},
    "tool_choice": {"tools": [TOOL], "tool_choice": TEN_MEGABYTES},
    "tools[0].function.name": {"tools": [{"type": "function", "function": {"name": TEN_MEGABYTES}}]},
    "tools[0].function.description": {
        "tools": [{"type": "function", "function": {"name": "f", "description": TEN_MEGABYTES}}]
    },
    "response_format.json_schema.schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": TEN_MEGABYTES}}}
    },
    "response_format.json_schema.name": {
        "response_format": {"type": "json_schema", "json_schema": {"name": TEN_MEGABYTES, "schema": {}}}
    },
    "logit_bias": {"logit_bias": {TEN_MEGABYTES: 1}},
    "aaaa": {TEN_MEGABYTES: 1},
}


@pytest.mark.parametrize("param", LONG_FIELDS)
def test_ten_megabytes_anywhere(param: str) -> None:
    assert (refusal("chat/completions", CHAT | LONG_FIELDS[param])["param"] or "").startswith(param)


def test_ten_megabytes_elsewhere() -> None:
    assert refusal("completions", COMPLETION | {"prompt": TEN_MEGABYTES})["code"] == "context_length_exceeded"
    assert refusal("completions", COMPLETION | {"prompt": [5] * 4_000_000})["code"] == "context_length_exceeded"
    assert refusal("responses", RESPONSE | {"input": TEN_MEGABYTES})["code"] == "context_length_exceeded"
    assert refusal("embeddings", EMBEDDING | {"input": TEN_MEGABYTES})["param"] == "input"
    assert refusal("completions", COMPLETION | {"model": TEN_MEGABYTES})["param"] == "model"
    assert refusal("completions", COMPLETION | {"model": "a" * 500}, 404)["param"] == "model"


@pytest.mark.parametrize("field", ["chat_template", "documents", "add_generation_prompt", "continue_final_message"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_a_request_cannot_bring_a_template(path: str, field: str) -> None:
    for value in ("{{ ''.__class__.__mro__ }}", {"a": 1}):
        error = refusal(path, BODIES[path] | {field: value})
        assert error["param"] == field
        assert field in error["message"]


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
@pytest.mark.parametrize("value", ["{{ ''.__class__.__mro__ }}", {"messages": []}, {"tools": []}, {"a b": 1}])
def test_a_templates_variables_are_an_object_without_those_of_the_service(path: str, value: Any) -> None:
    assert refusal(path, BODIES[path] | {"chat_template_kwargs": value})["param"].startswith("chat_template_kwargs")


@pytest.mark.parametrize("prompt", ["", [""], ["hi", ""]])
def test_an_empty_prompt_where_nothing_starts_a_text(prompt: Any) -> None:
    error = refusal("completions", COMPLETION | {"prompt": prompt})
    assert error["param"] == "prompt"
    assert "empty" in error["message"]


@pytest.mark.parametrize("prompt", [[], [[]], [[5], []]])
def test_a_prompt_of_no_tokens(prompt: Any) -> None:
    assert (refusal("completions", COMPLETION | {"prompt": prompt})["param"] or "").startswith("prompt")


CALLED = [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": "<|im_end|>"})}},
]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "".join(CONTROL)}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": token} for token in CONTROL]}]},
        {"messages": [{"role": "user", "content": token[:half]} for token in CONTROL for half in (1, 2, 5)]},
        {"messages": [{"role": "user", "content": "x", "name": CONTROL[0]}]},
        {"messages": [{"role": "system", "content": CONTROL[-1]}, {"role": "user", "content": CONTROL[0]}]},
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": CALLED},
                {"role": "tool", "tool_call_id": "c", "content": "".join(CONTROL)},
            ]
        },
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "description": "".join(CONTROL),
                        "parameters": {"properties": {CONTROL[0]: {"description": CONTROL[-1]}}},
                    },
                }
            ]
        },
    ],
)
def test_what_users_write_makes_no_control_token(fields: dict[str, Any]) -> None:
    """A prompt has as many tokens as one with harmless text in the same fields."""
    counts = []
    for body in (CHAT | fields, CHAT | json.loads(without_control(json.dumps(fields)))):
        worker = FakeWorker(lambda _: deltas([40]))
        client = TestClient(http_app(worker.generate, model=tiny_model(context_tokens=4096)))
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        prompt = worker.requests[0].prompt_token_ids
        counts.append([prompt.count(reference_tokenizer().token_to_id(token)) for token in CONTROL])
    assert counts[0] == counts[1]


def without_control(text: str) -> str:
    for token in sorted(CONTROL, key=len, reverse=True):
        text = text.replace(token, "word")
    return text


def test_three_prompts_that_are_too_long_and_one_that_is_not() -> None:
    worker = FakeWorker(lambda _: deltas([40]))
    client = TestClient(http_app(worker.generate))
    for prompt in ("word " * 5_000, [5] * 100_000, ["hi", "word " * 5_000]):
        answer = client.post("/v1/completions", json=COMPLETION | {"prompt": prompt})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert worker.requests == []
    assert client.post("/v1/completions", json=COMPLETION).status_code == 200


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "embeddings"])
def test_what_only_the_engine_refuses_is_no_failure_of_ours(path: str) -> None:
    refused = InvalidRequestError("this model's RoPE is dynamic: its context can't be shifted")
    client = TestClient(http_app(FakeWorker(lambda _: [refused]).generate))
    answer = client.post(f"/v1/{path}", json=BODIES[path])
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "dynamic" in answer.json()["error"]["message"]


def test_what_is_another_number_in_single_precision() -> None:
    for path in ("chat/completions", "completions", "responses"):
        assert refusal(path, BODIES[path] | {"repetition_penalty": 5e-324})["param"] == "repetition_penalty"
