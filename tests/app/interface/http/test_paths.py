"""Paths as clients write them: without `/v1`, with a slash at the end, with HEAD, and unknown ones."""

import json
from typing import Any

import pytest

from tests.app.exchange import Exchange
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def whole() -> Any:
    return http_app(FakeWorker(lambda _: deltas([1])).generate)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", CHAT),
        ("/completions", {"model": "tiny", "prompt": "hi"}),
        ("/responses", {"model": "tiny", "input": "hi"}),
    ],
)
async def test_the_common_paths_work_without_their_version(whole: Any, path: str, body: dict[str, Any]) -> None:
    answer = await Exchange(whole, path, body).ended()
    assert answer.status == 200
    assert json.loads(answer.body)["usage"]
    metrics = await Exchange(whole, "/metrics", method="GET").ended()
    assert f'route="/v1{path}",status="200"'.encode() in metrics.body, "and count as the same route"


async def test_so_do_models_and_embeddings(whole: Any) -> None:
    for path in ("/models", "/v1/models/", "/models/"):
        listed = await Exchange(whole, path, method="GET").ended()
        assert [model["id"] for model in json.loads(listed.body)["data"]] == ["tiny"], path
    assert json.loads((await Exchange(whole, "/models/tiny", method="GET").ended()).body)["id"] == "tiny"
    refused = await Exchange(whole, "/embeddings", {"model": "tiny"}).ended()
    assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, "input")


async def test_they_need_a_key_as_the_others_do() -> None:
    app = http_app(FakeWorker(lambda _: deltas([1])).generate, api_keys=("k",))
    assert (await Exchange(app, "/chat/completions", CHAT).ended()).status == 401
    assert (await Exchange(app, "/models", method="GET").ended()).status == 401


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("GET", "/elsewhere", "The API is below /v1"),
        ("POST", "/elsewhere", "The API is below /v1"),
        ("GET", "/v1", "The API is below /v1"),
        ("GET", "/assets/nothing.js", "The API is below /v1"),
        ("GET", "/static/nothing.js", "The API is below /v1"),
        ("POST", "/v1/v1/chat/completions", "another one"),
        ("GET", "/v1/v1/models", "another one"),
        ("GET", "/v1/v1", "another one"),
        ("POST", "/api/chat", "Ollama"),
        ("GET", "/api/tags", "Ollama"),
        ("POST", "/api/generate", "Ollama"),
        ("POST", "/api/v1/chat/completions", "Did you mean /v1/chat/completions?"),
        ("POST", "/openai/deployments/tiny/chat/completions", "Did you mean /v1/chat/completions?"),
        ("POST", "/v1/chat/completions/", "Did you mean /v1/chat/completions?"),
        ("POST", "/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        ("POST", "/v1/embedding", "Did you mean /v1/embeddings?"),
        ("POST", "/v1/tokenize", "Did you mean /tokenize?"),
        ("GET", "/healthz", "Did you mean /health?"),
        pytest.param("POST", "/" + 5000 * "x", "The API is below /v1", id="long"),
    ],
)
async def test_an_unknown_path_is_an_error_with_a_hint(whole: Any, method: str, path: str, hint: str) -> None:
    answer = await Exchange(whole, path, method=method).ended()
    assert answer.status == 404
    error = json.loads(answer.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "unknown_url"
    assert hint in error["message"]
    assert len(error["message"]) < 400


async def test_without_the_page_it_is_the_same() -> None:
    app = http_app(FakeWorker(lambda _: deltas([1])).generate)
    error = json.loads((await Exchange(app, "/api/chat", CHAT).ended()).body)["error"]
    assert (error["code"], "Ollama" in error["message"]) == ("unknown_url", True)


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/v1/models", "/v1/models/tiny", "/metrics", "/docs"])
async def test_head_is_answered_as_get_is(whole: Any, path: str) -> None:
    head, get = [await Exchange(whole, path, method=method).ended() for method in ("HEAD", "GET")]
    assert head.status == get.status == 200
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_what_is_allowed_is_told(whole: Any) -> None:
    refused = await Exchange(whole, "/v1/models", method="DELETE").ended()
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
