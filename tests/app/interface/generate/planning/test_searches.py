"""Searches as clients ask for them: the engine's requests, the answers, and refusals by name."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.interface.generate.planning.completions import plan_completion
from app.interface.request.errors import ApiError
from app.interface.wire.completions import CompletionRequest
from app.messages.outputs import Answer, TokenDelta
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest
from tests.app.interface.generate.planning.test_generation import CALLER, LIMITS, chat, completion
from tests.app.service import http_app, http_client
from tests.app.tiny_model import reference_tokenizer, tiny_model

TEXTS = ["Hello", "Hello STOP more", "🎉"]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("fields", "search"),
    [
        ({}, None),
        ({"num_beams": 1}, None),
        ({"use_beam_search": False}, None),
        ({"penalty_alpha": 0}, None),
        ({"num_beams": 4}, BeamParams(4)),
        ({"num_beams": 4, "n": 3, "temperature": 0, "top_p": 1}, BeamParams(4, 3)),
        ({"use_beam_search": True, "n": 3}, BeamParams(3, 3)),
        ({"use_beam_search": True}, BeamParams(1)),
        (
            {"num_beams": 2, "length_penalty": -1, "early_stopping": "never"},
            BeamParams(2, 1, -1.0, "never"),
        ),
        ({"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5}, BeamParams(6, 1, 1.0, False, 3, 0.5)),
        ({"penalty_alpha": 0.6, "top_k": 4}, ContrastiveParams(4, 0.6)),
    ],
)
def test_what_the_engine_is_asked(fields: dict[str, Any], search: object) -> None:
    for job in (chat(**fields), completion("hi", **fields)):
        (request,) = job.requests[:1]
        assert request.search == search
        assert job.outputs == fields.get("n", 1)


def test_best_of_is_the_number_of_beams() -> None:
    job = completion(["hi", "ho"], use_beam_search=True, best_of=4, n=2)
    assert [request.search for request in job.requests] == [BeamParams(4, 2)] * 2
    assert job.outputs == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"num_beams": 9}, "num_beams"),
        ({"num_beams": 4, "use_beam_search": False}, "num_beams"),
        ({"num_beams": 2, "n": 3}, "n"),
        ({"num_beams": 4, "num_beam_groups": 3}, "num_beam_groups"),
        ({"num_beams": 4, "diversity_penalty": 1.0}, "diversity_penalty"),
        ({"num_beams": 4, "penalty_alpha": 0.5}, "penalty_alpha"),
        ({"num_beams": 4, "top_k": 5}, "top_k"),
        ({"num_beams": 4, "temperature": 0.7}, "temperature"),
        ({"num_beams": 4, "top_p": 0.7}, "top_p"),
        ({"num_beams": 4, "min_p": 0.7}, "min_p"),
        ({"num_beams": 4, "on_overflow": "shift"}, "on_overflow"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"num_beam_groups": 2}, "num_beam_groups"),
        ({"diversity_penalty": 2}, "diversity_penalty"),
        ({"penalty_alpha": 0.5}, "top_k"),
        ({"penalty_alpha": 0.5, "top_k": 9}, "top_k"),
        ({"penalty_alpha": 0.5, "top_k": -1}, "top_k"),
        ({"penalty_alpha": 0.5, "top_k": 4, "n": 2}, "n"),
    ],
)
def test_what_can_not_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for route in ("chat", "completion"):
        with pytest.raises(ApiError) as refused:
            chat(**fields) if route == "chat" else completion("hi", **fields)
        assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_chat_search_has_neither_scores_nor_a_forced_form(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(num_beams=2, **fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"max_tokens": 0}, "max_tokens"), ({"logprobs": 1}, "logprobs"), ({"best_of": 3}, "best_of")],
)
def test_a_completion_search(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        completion("hi", num_beams=2, **fields)
    assert refused.value.param == param


def test_a_model_that_shifts_by_default_does_not_in_a_search() -> None:
    request = CompletionRequest.model_validate({"model": "m", "prompt": "hi", "num_beams": 2})
    job = plan_completion(tiny_model(on_overflow="shift"), request, LIMITS, CALLER, "id")
    assert job.requests[0].window is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("num_beams", "num_beam_groups", "length_penalty", "diversity_penalty", "penalty_alpha")
        for value in (-1e9, -(10**30), 10**30, "4", [4], True)
    ]
    + [("early_stopping", "always"), ("use_beam_search", 1), ("num_beams", 0), ("num_beams", 2.5)],
)
async def test_absurd_values_are_a_400_that_names_the_field(field: str, value: object) -> None:
    async def not_called(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        raise AssertionError("no worker should be asked")
        yield

    body = json.dumps(CHAT | {field: value})
    async with http_client(http_app(not_called)) as client:
        answer = await client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert field in answer.text


async def beams(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
    """A worker that answers every search with the same texts."""
    assert isinstance(request.search, BeamParams)
    best, *others = [tuple(reference_tokenizer().encode(text).ids) for text in TEXTS[: request.search.answers]]
    yield TokenDelta(best, "stop", 2, more=tuple(Answer(ids, "length") for ids in others))


async def test_the_beams_are_the_choices_the_best_first() -> None:
    async with http_client(http_app(beams)) as client:
        body = CHAT | {"num_beams": 4, "n": 3, "stop": " STOP"}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello", "Hello", "🎉"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop", "length"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


async def test_beams_of_several_prompts_keep_their_places_and_echo_them() -> None:
    async with http_client(http_app(beams)) as client:
        body = {"model": "tiny", "prompt": ["a", "b"], "num_beams": 4, "n": 2, "echo": True}
        answer = (await client.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == [prompt + text for prompt in "ab" for text in TEXTS[:2]]


async def test_a_stream_of_beams_comes_at_the_end() -> None:
    async with http_client(http_app(beams)) as client:
        body = CHAT | {"num_beams": 2, "n": 2, "stream": True}
        text = (await client.post("/v1/chat/completions", json=body)).text
    assert text.rstrip().endswith("data: [DONE]")
    assert '"index":1' in text.replace(" ", "")
    assert "STOP" in text
