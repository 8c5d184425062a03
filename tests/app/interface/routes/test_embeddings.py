import asyncio
import base64
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from app.interface.generate.answers.embeddings import MAX_CONCURRENT_INPUTS, embeddings_body
from app.interface.routes import embeddings as routes
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker
from tests.app.service import http_app, http_client, never, openai_client
from tests.app.tiny_model import CONTEXT_TOKENS, HIDDEN_SIZE, reference_tokenizer


def vector_of(tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """A vector that identifies the input."""
    vector = np.random.default_rng(list(tokens)).normal(size=HIDDEN_SIZE)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    assert request.max_new_tokens == 0
    return [TokenDelta((), "length", 0, None, PromptResult(embedding=vector_of(request.prompt_token_ids)))]


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(reference_tokenizer().encode(text).ids)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
@pytest.mark.parametrize("pooling", ["mean", "last", None])
async def test_openai_client(encoding: Any, pooling: str | None) -> None:
    worker = FakeWorker(script)
    client = openai_client(http_app(worker.generate))
    options: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
    answer = await client.embeddings.create(
        model="tiny", input="the fox", extra_body={} if pooling is None else {"pooling": pooling}, **options
    )
    (entry,) = answer.data
    vector: Any = entry.embedding
    if encoding == "base64":
        vector = np.frombuffer(base64.b64decode(vector), "<f4")
    assert np.array_equal(np.array(vector, np.float32), vector_of(tokens_of("the fox")))
    assert (answer.object, answer.model, entry.object, entry.index) == ("list", "tiny", "embedding", 0)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(tokens_of("the fox"))
    assert worker.requests[0].pooling == (pooling or "mean")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["the fox", "the dog"], [tokens_of("the fox"), tokens_of("the dog")]),
        ([4, 5, 6], [(4, 5, 6)]),
        ([[4, 5], [6]], [(4, 5), (6,)]),
        ([f"cat {i}" for i in range(70)], [tokens_of(f"cat {i}") for i in range(70)]),
    ],
)
async def test_every_form_of_input_in_its_order(inputs: Any, expected: list[tuple[int, ...]]) -> None:
    client = openai_client(http_app(FakeWorker(script).generate))
    answer = await client.embeddings.create(model="tiny", input=inputs, dimensions=HIDDEN_SIZE)
    assert [entry.index for entry in answer.data] == list(range(len(expected)))
    for entry, tokens in zip(answer.data, expected, strict=True):
        assert np.array_equal(np.array(entry.embedding, np.float32), vector_of(tokens))
    assert answer.usage.prompt_tokens == sum(map(len, expected))


async def test_a_long_list_leaves_room_for_others() -> None:
    worker = FakeWorker(script)
    most = 0

    async def counting(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        nonlocal most
        await asyncio.sleep(0)
        async with aclosing(worker.generate(request)) as deltas:
            async for delta in deltas:
                most = max(most, worker.running)
                await asyncio.sleep(0)
                yield delta

    await openai_client(http_app(counting)).embeddings.create(model="tiny", input=["cat"] * 50)
    assert 1 < most <= MAX_CONCURRENT_INPUTS
    assert worker.running == 0


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (QueueFullError("full"), openai.RateLimitError),
        (EngineStoppedError("down"), openai.InternalServerError),
        (ZeroDivisionError("a bug"), openai.InternalServerError),
    ],
)
async def test_what_the_worker_refuses(error: Exception, raised: type[Exception]) -> None:
    worker = FakeWorker(lambda request: [error] if request.prompt_token_ids == (7,) else script(request))

    async def later(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        await asyncio.sleep(0)
        async for delta in worker.generate(request):
            yield delta

    client = openai_client(http_app(later))
    with pytest.raises(raised):
        await client.embeddings.create(model="tiny", input=[[4], [7], *[[5]] * 50])
    assert worker.running == 0
    assert len(worker.requests) < 10


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"dimensions": HIDDEN_SIZE - 1}, "dimensions", "unsupported_parameter"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"pooling": "max"}, "pooling", "invalid_value"),
        ({"input": ""}, "input", None),
        ({"input": ["a", ""]}, "input[1]", None),
        ({"input": []}, "input", "invalid_value"),
        ({"input": {}}, "input", "wrong_type"),
        ({"input": [[1], ["a"]]}, "input[1][0]", "invalid_value"),
        ({"input": [1, 99999]}, "input", "invalid_value"),
        ({"input": [5] * (CONTEXT_TOKENS + 1)}, "input", "context_length_exceeded"),
        ({"input": "cat " * 5000}, "input", "context_length_exceeded"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"stream": True}, "stream", "unknown_parameter"),
    ],
)
async def test_refusals_reach_no_worker(fields: dict[str, Any], param: str, code: str | None) -> None:
    async with http_client(http_app(never)) as client:
        response = await client.post("/v1/embeddings", json={"model": "tiny", "input": "a"} | fields)
    assert response.status_code == (404 if code == "model_not_found" else 400)
    error = response.json()["error"]
    assert error["param"] == param
    assert error["code"] == ("invalid_value" if code == "wrong_type" else code)


async def test_a_key_is_a_tenant() -> None:
    worker = FakeWorker(script)
    async with http_client(http_app(worker.generate, api_keys=("key",))) as client:
        body = {"model": "tiny", "input": ["a", "b"]}
        assert (await client.post("/v1/embeddings", json=body)).status_code == 401
        await client.post("/v1/embeddings", json=body, headers={"Authorization": "Bearer key"})
    assert {len(request.tenant) for request in worker.requests} == {32}


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_other_requests_go_on_while_a_long_answer_is_written(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()

    def watched(*arguments: Any) -> bytes:
        threads.add(threading.current_thread().name)
        return embeddings_body(*arguments)

    monkeypatch.setattr(routes, "embeddings_body", watched)
    monkeypatch.setattr(routes, "MANY_NUMBERS", 4 * HIDDEN_SIZE)
    client = openai_client(http_app(FakeWorker(script).generate))
    for inputs, name in ((["a"] * 3, "MainThread"), (["a"] * 4, "tokenize_0")):
        threads.clear()
        answer = await client.embeddings.create(model="tiny", input=inputs, encoding_format=form)
        assert len(answer.data) == len(inputs)
        assert threads == {name}
