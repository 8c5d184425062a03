"""Anthropic's own package: its calls of the Messages API, with the embedded model; thoughts and calls with a script."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from agents import Desk, call
from anthropic.types import message_create_params
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as BetaParams
from pydantic import BaseModel

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
DOCUMENT = Path(__file__).parents[2] / "data" / "documents" / "contract.pdf"
READ = "[page 1]\nContract\nThe rent is 1,250 euros.\n\n[page 3]\nNotice: three months."
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
ANY_FORM = {"cache_control", "context_management", "diagnostics", "inference_geo"}
"""Parameters without effect, whatever they are."""


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def scripted(desk: Desk) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=desk.url, auth_token="none", api_key=None, max_retries=0) as made:
        yield made


@pytest.fixture
def asked(model: str) -> dict[str, Any]:
    return {"model": model, "messages": QUESTION, "max_tokens": 24, "extra_body": {"temperature": 0}}


def test_create(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    answer = client.messages.create(**asked, metadata={"user_id": "me"})
    (block,) = answer.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer._request_id


def test_a_stream_says_the_same(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.text for block in whole.content if block.type == "text"] == [text]
    assert [block.text for block in final.content if block.type == "text"] == [text]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    cached = final.usage.cache_read_input_tokens or 0
    assert final.usage.input_tokens + cached == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_raw_events(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_long_prompt_is_found_again(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    asked = asked | {"system": [{"type": "text", "text": "Be kind. " * 60, "cache_control": {"type": "ephemeral"}}]}
    client.messages.create(**asked)
    usage = client.messages.create(**asked).usage
    assert (usage.cache_read_input_tokens or 0) >= 64
    counted = {key: value for key, value in asked.items() if key in ("model", "messages", "system")}
    length = client.messages.count_tokens(**counted).input_tokens
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == length


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_forced_call(client: anthropic.Anthropic, asked: dict[str, Any], choice: Any, streamed: bool) -> None:
    options = asked | {"tools": [WEATHER], "tool_choice": choice | {"disable_parallel_tool_use": True}}
    if streamed:
        with client.messages.stream(**options) as stream:
            answer: Any = stream.get_final_message()
    else:
        answer = client.messages.create(**options)
    (block,) = answer.content
    assert (block.type, block.name, answer.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert block.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    turns = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**(asked | {"messages": turns, "tools": [WEATHER]})).content


def test_a_typed_answer(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    options = asked | {"max_tokens": 64, "messages": [{"role": "user", "content": "Ann is 7 years old."}]}
    answer = client.messages.parse(**options, output_format=Person)
    assert isinstance(answer.parsed_output, Person)


def test_stop_sequences_and_a_begun_answer(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    answer = client.messages.create(**(asked | {"messages": begun}), stop_sequences=["Paris"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")


def test_a_document_is_its_text(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    pdf = base64.b64encode(DOCUMENT.read_bytes()).decode()
    sources: list[dict[str, Any]] = [
        {"type": "base64", "media_type": "application/pdf", "data": pdf},
        {"type": "text", "media_type": "text/plain", "data": READ},
        {"type": "content", "content": [{"type": "text", "text": READ}]},
    ]

    def about(source: dict[str, Any]) -> list[Any]:
        document = {"type": "document", "title": DOCUMENT.name, "source": source}
        return [{"role": "user", "content": [document, {"type": "text", "text": "How much is the rent?"}]}]

    answers = [client.messages.create(**(asked | {"messages": about(source)})) for source in sources]
    assert len({block.text for answer in answers for block in answer.content if block.type == "text"}) == 1
    counts = [client.messages.count_tokens(model=asked["model"], messages=about(source)) for source in sources]
    assert len({count.input_tokens for count in counts}) == 1
    elsewhere = about({"type": "url", "url": "https://example.org/a.pdf"})
    with pytest.raises(anthropic.BadRequestError, match="the service fetches nothing"):
        client.messages.create(**(asked | {"messages": elsewhere}))


def test_models(client: anthropic.Anthropic, model: str, encoder: str) -> None:
    assert [entry.id for entry in client.models.list(limit=1)] == [model, encoder]
    assert client.models.retrieve(model).type == "model"


def test_errors(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    with pytest.raises(anthropic.NotFoundError, match="Served: ") as unknown:
        client.messages.create(**(asked | {"model": "claude-opus"}))
    assert unknown.value.request_id
    long = [{"role": "user", "content": "word " * 40_000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**(asked | {"messages": long}))
    with pytest.raises(anthropic.BadRequestError, match=r"thinking.*should be an object"):
        client.messages.create(**asked, thinking={"type": "sometimes"})
    with pytest.raises(anthropic.NotFoundError, match="Batches"):
        client.messages.batches.list()


PARAMETERS = sorted(
    {*message_create_params.MessageCreateParamsNonStreaming.__annotations__, *BetaParams.__annotations__}
)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_is_honoured_or_refused_by_name(
    client: anthropic.Anthropic, asked: dict[str, Any], name: str
) -> None:
    options = asked | {"extra_body": {name: {"some": "object"}}}
    if name in ANY_FORM:
        assert client.messages.create(**options).content
        return
    with pytest.raises(anthropic.BadRequestError, match=rf"\W{name}\b"):
        client.messages.create(**options)


def test_thoughts_and_calls_of_an_agent(desk: Desk, scripted: anthropic.Anthropic) -> None:
    thought = "<think>\nI look.\n</think>\n\n"
    desk.script(
        [("sunny", "<think>\nSo.\n</think>\n\nIt is sunny."), ("capital", thought + call("get_weather", city="Rome"))]
    )
    options: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 2048,
        "tools": [WEATHER | {"strict": False}, {"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    turns = list(QUESTION)
    with scripted.beta.messages.stream(**options, messages=turns, betas=["interleaved-thinking-2025-05-14"]) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_message()
    assert {"thinking", "signature", "input_json", "content_block_stop", "message_stop"} <= kinds
    thinking, used = answer.content
    assert (thinking.type, used.type, answer.stop_reason) == ("thinking", "tool_use", "tool_use")
    assert thinking.thinking == "I look."
    assert thinking.signature
    result = {"type": "tool_result", "tool_use_id": used.id, "content": [{"type": "text", "text": "sunny"}]}
    turns += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    last = scripted.messages.create(**options, messages=turns)
    assert [block.type for block in last.content] == ["thinking", "text"]
    assert last.usage.output_tokens_details is not None
    assert last.usage.output_tokens_details.thinking_tokens > 0
    (*_, sent) = desk.requests("/v1/messages")
    assert json.dumps("I look.") in json.dumps(sent)
