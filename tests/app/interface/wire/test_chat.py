import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.interface.request.errors import ApiError
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest
from app.interface.wire.parse import parse

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


def refusal(body: object, model: type[Any] = ChatCompletionRequest) -> ApiError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        parse(model, raw)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0.99, "repetition_penalty": 1.1},
        {"presence_penalty": -2, "frequency_penalty": 2, "seed": -(2**63), "logit_bias": {"0": -100, "359": 100}},
        {"stop": "a"},
        {"stop": ["a", "b", "c", "d"], "stop_token_ids": [5], "ignore_eos": True},
        {"stop": None, "n": None, "stream": None, "max_tokens": None, "temperature": None, "tools": None},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "none", "store": False},
        {"response_format": {"type": "text"}, "modalities": ["text"], "service_tier": "auto"},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"max_completion_tokens": 1, "reasoning_effort": "none", "verbosity": "low", "enable_thinking": True},
        {"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": False, "x": [{"y": None}]}},
        {"max_completion_tokens": 1, "reasoning_effort": "none", "verbosity": "low"},
        {"reasoning_effort": "xhigh", "verbosity": "high"},
        {"messages": [{"role": role, "content": "x"} for role in ("system", "developer", "assistant", "tool")]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": "ann"}]},
    ],
)
def test_what_is_honoured_is_accepted(fields: dict[str, Any]) -> None:
    parse(ChatCompletionRequest, orjson.dumps(CHAT | fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "sometimes"),
        ("parallel_tool_calls", 1),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content"}),
        ("reasoning_effort", "extreme"),
        ("reasoning_effort", 3),
        ("store", True),
        ("verbosity", "none"),
        ("web_search_options", {}),
        ("moderation", {}),
        ("chat_template", "{{ x }}"),
        ("structural_tag", {}),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("n", 0),
        ("n", -1),
        ("n", 10**9),
        ("n", 10**30),
        ("n", True),
        ("n", "2"),
        ("max_tokens", 0),
        ("max_tokens", -2),
        ("max_tokens", 10**18),
        ("max_tokens", 1.0),
        ("max_completion_tokens", 0),
        ("seed", 2**63),
        ("seed", 0.5),
        ("stop", [str(i) for i in range(17)]),
        ("stop", 5),
        ("stop", {}),
        ("stop", "x" * 1000),
        ("stop", ""),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [-1]),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [5]),
        ("logit_bias", {str(i): 0 for i in range(5000)}),
        ("metadata", {"a": 1}),
        ("metadata", {str(i): "" for i in range(17)}),
        ("stream", "yes"),
        ("stream_options", {"include_usage": "yes"}),
        ("messages", []),
        ("messages", "hi"),
        ("messages", None),
        ("model", 5),
        ("user", 5),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(CHAT | {field: value})
    assert error.param is not None
    assert error.param.startswith(field)
    assert field in error.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user"}, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "color": "red"}], "messages[0].color"),
        ([{"role": "assistant", "refusal": {}}], "messages[0].refusal"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "tool_calls": [{"id": "1", "type": "other"}]}], "messages[0].tool_calls[0].type"),
        ([{"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]}], "messages[0].tool_calls[0].custom"),
        (["hi"], "messages[0]"),
        ([None], "messages[0]"),
    ],
)
def test_the_wrong_part_of_a_message_is_named(messages: object, param: str) -> None:
    assert refusal(CHAT | {"messages": messages}).param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", 1),
        ("suffix", "x"),
        ("logprobs", 21),
        ("logprobs", -1),
        ("best_of", 0),
        ("prompt", None),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [1, "a"]),
        ("prompt", ["a", 1]),
        ("prompt", [[1], "a"]),
        ("prompt", [-1]),
        ("prompt", [2**40]),
        ("prompt", [1.5]),
        ("prompt", {"a": 1}),
        ("prompt", ["x"] * 1000),
        ("messages", []),
    ],
)
def test_completions_refuse_by_name_too(field: str, value: object) -> None:
    error = refusal(COMPLETION | {field: value}, CompletionRequest)
    assert (error.param or "").startswith(field)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_the_four_kinds_of_prompt(prompt: object, prompts: object) -> None:
    assert parse(CompletionRequest, orjson.dumps(COMPLETION | {"prompt": prompt})).prompts == prompts


def test_what_is_missing_is_named() -> None:
    assert refusal({"model": "m"}).param == "messages"
    assert refusal({"model": "m"}).code == "missing_required_parameter"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"model": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"model": "\\ud800"}',
        b'{"model": "\xed\xa0\x80"}',
        b"\xff\xfe",
        b'{"a":' * 100_000,
        b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
        orjson.dumps({str(i): i for i in range(300_000)}),
        orjson.dumps(CHAT | {"messages": [{str(i): i for i in range(100_000)}]}),
        orjson.dumps(CHAT | {"messages": ["x"] * 1_000_000}),
        orjson.dumps(COMPLETION | {"prompt": [0] + ["x"] * 1_000_000}),
    ],
    ids=lambda body: f"{body[:24]!r}-{len(body)}",
)
@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_hostile_bodies_are_refused(body: bytes, model: type[Any]) -> None:
    assert len(refusal(body, model).message) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(ChatCompletionRequest.model_fields)), JSON)
def test_any_value_of_any_field_is_accepted_or_refused_by_name(field: str, value: object) -> None:
    try:
        raw = orjson.dumps(CHAT | {field: value})
    except (TypeError, orjson.JSONEncodeError):  # integers that no JSON number of 64 bits holds
        return
    refused = None
    try:
        parse(ChatCompletionRequest, raw)
    except ApiError as error:
        refused = error
    assert refused is None or (refused.status == 400 and (refused.param or "").startswith(field))
