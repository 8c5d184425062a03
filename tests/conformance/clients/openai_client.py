"""OpenAI's own package: each of its calls that the service has a route for."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
LONG: list[Any] = [{"role": "user", "content": "word " * 40_000}]
DOCUMENT = Path(__file__).parents[2] / "data" / "documents" / "contract.pdf"
READ = "[page 1]\nContract\nThe rent is 1,250 euros.\n\n[page 3]\nNotice: three months."
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def asked(model: str) -> dict[str, Any]:
    return {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 24}


def test_models(client: openai.OpenAI, model: str, encoder: str) -> None:
    assert [entry.id for entry in client.models.list()] == [model, encoder]
    assert client.models.retrieve(model).object == "model"


def test_chat(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    answer = client.chat.completions.create(**asked)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_chat_streamed_says_the_same(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason


def test_the_stream_helper(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert kinds[-1] == "content.done" or "content.done" in kinds
    assert "Paris" in final.choices[0].message.content


def test_choices_seeds_and_stops(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    drawn = asked | {"temperature": 1, "n": 3, "seed": 7, "stop": ["\n", "."]}
    first, second = (client.chat.completions.create(**drawn) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert not any("." in text or "\n" in text for text in texts)


def test_logprobs(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=5)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 5 and entry.logprob == entry.top_logprobs[0].logprob for entry in entries)
    joined = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert joined == answer.choices[0].message.content


def test_logit_bias_and_max_completion_tokens(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_completion_tokens=5, logit_bias={"504": 100}
    )
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"
    assert len(set(answer.choices[0].message.content.split())) == 1


def test_completions_with_echo_and_logprobs(client: openai.OpenAI, model: str) -> None:
    prompt = "The capital of France is"
    answer = client.completions.create(
        model=model, prompt=[prompt, prompt], max_tokens=3, temperature=0, echo=True, logprobs=2
    )
    first, second = answer.choices
    assert first.text == second.text
    assert first.text.startswith(prompt)
    assert "Paris" in first.text
    assert first.logprobs.token_logprobs[0] is None
    assert len(first.logprobs.tokens) == len(first.logprobs.token_logprobs) == len(first.logprobs.top_logprobs)
    best = client.completions.create(model=model, prompt=prompt, max_tokens=3, best_of=3, n=1, seed=1)
    assert len(best.choices) == 1


def test_parse(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "Jane Doe is 30 years old. Give her name and age as JSON."}]
    options = asked | {"messages": messages, "max_tokens": 64}
    answer = client.chat.completions.parse(**options, response_format=Person)
    assert isinstance(answer.choices[0].message.parsed, Person)
    with client.chat.completions.stream(**options, response_format=Person) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


def test_json_object(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "Give a small JSON object with a name."}]
    answer = client.chat.completions.create(
        **asked | {"messages": messages, "max_tokens": 200}, response_format={"type": "json_object"}
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls(client: openai.OpenAI, asked: dict[str, Any], choice: Any) -> None:
    options = asked | {"max_tokens": 64, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    answer = client.chat.completions.create(**options)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert answer.choices[0].finish_reason in ("stop", "tool_calls")
    name, arguments = "", ""
    for chunk in client.chat.completions.create(**options, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, arguments) == ("get_weather", call.function.arguments)


def test_a_call_and_its_result_go_back(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny, 25 degrees"},
    ]
    answer = client.chat.completions.create(**asked | {"messages": messages, "tools": [WEATHER]})
    assert answer.choices[0].message.content is not None


def test_tool_schemas_are_parsed(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    tool = openai.pydantic_function_tool(Person)
    options = asked | {"max_tokens": 64, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat.completions.parse(**options)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Person)


def test_async(base_url: str, asked: dict[str, Any]) -> None:
    async def many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(*[client.chat.completions.create(**asked) for _ in range(8)])
            return [answer.choices[0].message.content for answer in answers]

    assert len(set(asyncio.run(many()))) == 1


def test_raw_responses(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    ("fields", "raised", "code"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"n": 10**9}, openai.BadRequestError, None),
        ({"messages": LONG}, openai.BadRequestError, "context_length_exceeded"),
        ({"extra_body": {"chat_template": "{{ messages }}"}}, openai.BadRequestError, "unknown_parameter"),
    ],
)  # fmt: skip
def test_errors(client: openai.OpenAI, asked: dict[str, Any], fields: Any, raised: Any, code: str | None) -> None:
    with pytest.raises(raised) as caught:
        client.chat.completions.create(**asked | fields)
    assert caught.value.message
    assert code is None or caught.value.code == code


def test_closing_a_stream(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    with client.chat.completions.create(**asked | {"max_tokens": 2000}, stream=True) as stream:
        next(iter(stream))
    assert client.models.list().data


def test_embeddings(client: openai.OpenAI, model: str) -> None:
    answer = client.embeddings.create(model=model, input=["The sea is blue.", "The sea is blue.", "Tax law"])
    first, same, other = (entry.embedding for entry in answer.data)
    assert first == same != other
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-3)
    plain = client.embeddings.create(model=model, input="The sea is blue.", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(first, abs=1e-6)
    assert answer.usage.prompt_tokens > 0


def test_responses(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    answer = client.responses.create(**options)
    assert "Paris" in answer.output_text
    events = list(client.responses.create(**options, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == answer.output_text


def test_responses_tools_and_formats(client: openai.OpenAI, model: str) -> None:
    tool: Any = {"type": "function", "strict": True, **WEATHER["function"]}
    answer = client.responses.create(
        model=model, input=QUESTION, temperature=0, max_output_tokens=64, tools=[tool], tool_choice="required",
        parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    parsed = client.responses.parse(
        model=model, input="Jane Doe is 30 years old.", temperature=0, max_output_tokens=64, text_format=Person
    )
    assert isinstance(parsed.output_parsed, Person)


def test_a_file_is_its_text(client: openai.OpenAI, model: str) -> None:
    question, name = "How much is the rent?", DOCUMENT.name
    data = f"data:application/pdf;base64,{base64.b64encode(DOCUMENT.read_bytes()).decode()}"
    part = {"type": "file", "file": {"filename": name, "file_data": data}}
    typed = f'<document name="{name}">\n{READ}\n</document>\n\n{question}'
    contents: list[Any] = [[part, {"type": "text", "text": question}], typed]
    read, said = (
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": content}], temperature=0, max_tokens=24
        )
        for content in contents
    )
    assert read.usage.prompt_tokens == said.usage.prompt_tokens
    assert read.choices[0].message.content == said.choices[0].message.content
    asked: list[Any] = [
        {"type": "input_file", "filename": name, "file_data": data},
        {"type": "input_text", "text": question},
    ]
    answer = client.responses.create(
        model=model, input=[{"role": "user", "content": asked}], temperature=0, max_output_tokens=24
    )
    assert answer.output_text == said.choices[0].message.content
    elsewhere: Any = [{"role": "user", "content": [{"type": "input_file", "file_url": "https://example.org/a.pdf"}]}]
    with pytest.raises(openai.BadRequestError, match="the service fetches nothing"):
        client.responses.create(model=model, input=elsewhere)
