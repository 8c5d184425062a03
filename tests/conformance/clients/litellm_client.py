"""litellm, which many gateways and agents speak through: chat, text, calls, formats, errors, embeddings, responses."""

import asyncio
import json
from typing import Any

import litellm
import pytest
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: str
    country: str


@pytest.fixture(params=["openai", "hosted_vllm"])
def asked(request: pytest.FixtureRequest, base_url: str, model: str) -> dict[str, Any]:
    """Both ways in which litellm speaks to a server of its user's own."""
    return {
        "model": f"{request.param}/{model}",
        "api_base": base_url,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 24,
        "num_retries": 0,
    }


def test_completion(asked: dict[str, Any]) -> None:
    answer = litellm.completion(**asked, messages=QUESTION)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_stream(asked: dict[str, Any]) -> None:
    whole = litellm.completion(**asked, messages=QUESTION)
    chunks = list(litellm.completion(**asked, messages=QUESTION, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_async(asked: dict[str, Any]) -> None:
    async def both() -> tuple[str, str]:
        whole = await litellm.acompletion(**asked, messages=QUESTION)
        text = ""
        async for chunk in await litellm.acompletion(**asked, messages=QUESTION, stream=True):
            text += chunk.choices[0].delta.content or ""
        return whole.choices[0].message.content, text

    whole, streamed = asyncio.run(both())
    assert whole == streamed


def test_many_options(asked: dict[str, Any]) -> None:
    answer = litellm.completion(
        **asked | {"temperature": 1}, messages=QUESTION, n=2, top_p=0.9, stop=["\n"], seed=3, presence_penalty=0.5,
        frequency_penalty=0.5, logprobs=True, top_logprobs=2, user="somebody",
    )  # fmt: skip
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs.content


def test_forced_call(asked: dict[str, Any]) -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    messages = [{"role": "user", "content": "What is 2 plus 3?"}]
    answer = litellm.completion(**asked | {"max_tokens": 64}, messages=messages, tools=[ADD], tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "add"
    assert json.loads(call.function.arguments).keys() == {"a", "b"}


def test_response_format(asked: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Describe Paris as JSON with name and country."}]
    answer = litellm.completion(**asked | {"max_tokens": 64}, messages=messages, response_format=City)
    City.model_validate_json(answer.choices[0].message.content)


def test_text_completion(asked: dict[str, Any], base_url: str, model: str) -> None:
    options = asked | {"model": f"text-completion-openai/{model}"}
    answer = litellm.text_completion(**options, prompt="The capital of France is")
    assert "Paris" in answer.choices[0].text


def test_embedding(asked: dict[str, Any]) -> None:
    options = {name: asked[name] for name in ("model", "api_base", "api_key")}
    answer = litellm.embedding(**options, input=["one", "two"])
    assert len(answer.data) == 2


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere"])
def test_rerank(url: str, encoder: str, provider: str) -> None:
    address = url if provider == "hosted_vllm" else f"{url}/v2/rerank"
    texts = ["A girl carries a baby.", "A man is eating food."]
    answer = litellm.rerank(
        model=f"{provider}/{encoder}", api_base=address, api_key="none", query="Who eats?", documents=texts, top_n=1
    )
    assert [one["index"] for one in answer.results] == [1]


def test_responses(base_url: str, model: str) -> None:
    answer = litellm.responses(
        model=f"openai/{model}", api_base=base_url, api_key="none", input="Say hello.", max_output_tokens=8
    )
    assert answer.output[0].content[0].text


@pytest.mark.parametrize(
    ("fields", "raised"),
    [
        ({"messages": [{"role": "user", "content": "word " * 40_000}]}, litellm.ContextWindowExceededError),
        ({"messages": []}, litellm.BadRequestError),
        ({"messages": QUESTION, "model": "openai/gpt-9"}, litellm.NotFoundError),
    ],
)
def test_errors(asked: dict[str, Any], fields: dict[str, Any], raised: type[Exception]) -> None:
    with pytest.raises(raised):
        litellm.completion(**asked | fields)
