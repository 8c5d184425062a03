"""Encoders over HTTP: vectors, scores and what is refused, as stock clients ask for them."""

import base64
from typing import Any

import numpy as np
import openai
import pytest

from app.interface.generate.service import ServedModel, Service
from app.interface.http_api import build_http_app
from app.interface.text.encoder_model import EncoderModel
from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.encoder import encoder
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import INGRESS, WORKER, http_client, http_settings, openai_client
from tests.app.tiny_model import tiny_model

Client = Any


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    """A vector says how many of a text's tokens are "fox", how many "dog"; a score, how many of both."""
    if request.texts is None:
        return [*deltas([5])]
    parts = np.split(request.texts.token_ids, np.cumsum(request.texts.lengths)[:-1])
    counts = np.array([[(part == 5).sum(), (part == 6).sum(), 0, 1] for part in parts], np.float32)
    return [TokenDelta((), "length", prompt=PromptResult(embedding=counts / np.linalg.norm(counts, axis=1)[:, None]))]


def scoring(request: GenerateRequest) -> list[TokenDelta | Exception]:
    """A logit is how much more a pair's second text is of the first one's "fox"."""
    texts = request.texts
    assert texts is not None
    ends = np.cumsum(texts.lengths)
    seconds = [
        texts.token_ids[end - length + second : end]
        for end, length, second in zip(ends, texts.lengths, texts.second, strict=True)
    ]
    logits = np.array([[(part == 5).sum() - (part == 6).sum()] for part in seconds], np.float32)
    return [TokenDelta((), "length", prompt=PromptResult(embedding=logits))]


def app(model: EncoderModel, worker: FakeWorker) -> Any:
    models = {
        "tiny": ServedModel(tiny_model(), worker.generate, created=1),
        "encoder": ServedModel(model, worker.generate, created=1, aliases=("text-embedding-3-small",)),
    }
    return build_http_app(Service(models, lambda: [WORKER], http_settings(), INGRESS))


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_openai_client(encoding: Any) -> None:
    worker = FakeWorker(script)
    client = openai_client(app(encoder(), worker))
    options: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
    inputs = ["the fox", "fox fox dog", "the"] * 300
    answer = await client.embeddings.create(model="text-embedding-3-small", input=inputs, **options)
    assert [entry.index for entry in answer.data] == list(range(900))
    vector: Any = answer.data[-2].embedding
    if encoding == "base64":
        vector = np.frombuffer(base64.b64decode(vector), "<f4")
    np.testing.assert_allclose(vector, np.array([2, 1, 0, 1]) / np.sqrt(6), rtol=1e-6)
    assert answer.usage.prompt_tokens == 300 * (4 + 5 + 3)
    assert [len(request.texts.lengths) for request in worker.requests if request.texts] == [256, 256, 256, 132]
    assert len({request.request_id for request in worker.requests}) == 4


async def test_prompts_dimensions_and_token_ids() -> None:
    worker = FakeWorker(script)
    model = encoder(prompts={"query": "query: "}, shorter=[2])
    async with http_client(app(model, worker)) as client:
        body = {"model": "encoder", "input": "fox", "input_type": "query", "dimensions": 2}
        answer = (await client.post("/v1/embeddings", json=body)).json()
        np.testing.assert_allclose(answer["data"][0]["embedding"], [1, 0], rtol=1e-6)
        assert answer["usage"]["prompt_tokens"] == 5
        answer = (await client.post("/v1/embeddings", json={"model": "encoder", "input": [[5, 6], [6]]})).json()
        assert answer["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": "a", "dimensions": 3}, "can have 4"),
        ("/v1/embeddings", {"input": "a", "pooling": "mean"}, "an encoder has its own"),
        ("/v1/embeddings", {"input": [[99]]}, "token 99 is not in the vocabulary"),
        ("/v1/embeddings", {"input": "a", "input_type": "question"}, "input_type"),
        ("/v1/embeddings", {"model": "tiny", "input": "a", "input_type": "query"}, "is for encoders"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "makes no text"),
        ("/v1/completions", {"prompt": "a"}, "makes no text"),
        ("/v1/responses", {"input": "a"}, "makes no text"),
        ("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["b"]}, "is no encoder. Encoders here: encoder."),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": []}, "rank_fields"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "2 texts and 'text_2' 3"),
    ],
)
async def test_what_is_refused(path: str, body: dict[str, Any], message: str) -> None:
    worker = FakeWorker(script)
    async with http_client(app(encoder(), worker)) as client:
        answer = await client.post(path, json={"model": "encoder", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert not worker.requests


async def test_a_reranker_scores_pairs_and_makes_no_vectors() -> None:
    worker = FakeWorker(scoring)
    async with http_client(app(encoder(task="score", dimensions=1), worker)) as client:
        texts = ["dog", "fox fox", {"text": "fox"}]
        body = {"model": "encoder", "query": "the fox", "documents": texts, "top_n": 2}
        answer = (await client.post("/v1/rerank", json=body)).json()
        assert [each["index"] for each in answer["results"]] == [1, 2]
        np.testing.assert_allclose(answer["results"][0]["relevance_score"], 1 / (1 + np.exp(-2)), rtol=1e-6)
        assert answer["results"][0]["document"] == {"text": "fox fox"}
        assert answer["usage"]["prompt_tokens"] == 3 * 5 + 4
        unnamed = (await client.post("/v1/rerank", json={"query": "a", "documents": ["fox"]})).json()
        assert unnamed["model"] == "encoder", "not the first model, which chats"
        huge = await client.post("/v1/score", json={"text_1": "a" * (17 << 14), "text_2": ["a"] * 64})
        assert (huge.status_code, "Send fewer documents at a time" in huge.text) == (400, True)
        body |= {"return_documents": False}
        assert "document" not in (await client.post("/v1/rerank", json=body)).json()["results"][0]
        pairs = {"model": "encoder", "text_1": ["the", "the"], "text_2": ["fox", "dog"]}
        scores = [each["score"] for each in (await client.post("/v1/score", json=pairs)).json()["data"]]
        np.testing.assert_allclose(scores, [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))], rtol=1e-6)
        assert (await client.post("/v1/embeddings", json={"model": "encoder", "input": "a"})).status_code == 400
        listed = {each["id"]: each for each in (await client.get("/v1/models")).json()["data"]}
    assert listed["encoder"]["capabilities"] == ["rerank", "score"]


async def test_cohere_s_second_api_reads_the_first_tokens_of_a_document() -> None:
    async with http_client(app(encoder(task="score", dimensions=1, max_tokens=16), FakeWorker(scoring))) as client:
        texts = ["the dog fox fox", "the fox", " the  old DOG fox fox"]
        body = {"model": "encoder", "query": "fox", "documents": texts, "top_n": 3, "priority": 0}
        for most, order in ((4096, [0, 1, 2]), (2, [1, 2, 0]), (None, [0, 1, 2])):
            answer = await client.post("/v2/rerank", json={**body, "max_tokens_per_doc": most})
            assert answer.status_code == 200, answer.text
            assert [each["index"] for each in answer.json()["results"]] == order
            assert all("document" not in each for each in answer.json()["results"])
        one = {**body, "max_tokens_per_doc": 1}
        [best, *_] = (await client.post("/v1/rerank", json=one | {"priority": None})).json()["results"]
        assert best["document"]["text"] == texts[best["index"]], "as it was sent"
        assert (await client.post("/v2/rerank", json={**body, "max_tokens_per_doc": 0})).status_code == 400


@pytest.mark.parametrize(("given", "tokens"), [("search_query", 5), ("search_document", 3), ("passage", 3)])
async def test_other_names_of_queries_and_documents(given: str, tokens: int) -> None:
    async with http_client(app(encoder(prompts={"query": "query: "}), FakeWorker(script))) as client:
        body = {"model": "encoder", "input": "fox", "input_type": given}
        assert (await client.post("/v1/embeddings", json=body)).json()["usage"]["prompt_tokens"] == tokens


async def test_another_encoder_reranks_by_cosines() -> None:
    async with http_client(app(encoder(), FakeWorker(script))) as client:
        body = {"model": "encoder", "query": "fox", "documents": ["dog", "fox", "the"]}
        results = (await client.post("/rerank", json=body)).json()["results"]
        assert [each["index"] for each in results] == [1, 2, 0]
        np.testing.assert_allclose(results[0]["relevance_score"], 1, rtol=1e-6)
        listed = {each["id"]: each for each in (await client.get("/v1/models")).json()["data"]}
    assert listed["encoder"]["capabilities"] == ["embeddings", "rerank", "score"]
    assert listed["encoder"]["dimensions"] == 4
    assert listed["encoder"]["max_context_tokens"] == 8


async def test_an_error_of_the_worker_is_the_answers() -> None:
    worker = FakeWorker(lambda _: [RuntimeError("no")])
    with pytest.raises(openai.InternalServerError):
        await openai_client(app(encoder(), worker)).embeddings.create(model="encoder", input=["a"] * 600)
    assert worker.running == 0
