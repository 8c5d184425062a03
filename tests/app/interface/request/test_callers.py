"""Every route passes its caller to the worker, and a route without authentication fails."""

from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.completions import plan_completion
from app.interface.generate.planning.embeddings import plan_embeddings
from app.interface.generate.planning.limits import Limits
from app.interface.generate.planning.responses import plan_response
from app.interface.generate.reception import Reception
from app.interface.generate.service import ServedModel, Service
from app.interface.http.guard import Guarded
from app.interface.http.metrics import Metrics
from app.interface.http_api import build_http_app, service_routes
from app.interface.request.callers import Caller
from app.interface.request.recent_failures import RecentFailures
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest
from app.interface.wire.embeddings import EmbeddingRequest
from app.interface.wire.responses import ResponseRequest
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.encoder import encoder
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import INGRESS, WORKER, http_client, http_settings
from tests.app.tiny_model import tiny_model

MODEL = tiny_model()
LIMITS = Limits(64, 4)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/v1/embeddings": {"model": "tiny", "input": "hi"},
    "/v1/rerank": {"model": "encoder", "query": "hi", "documents": ["you"]},
    "/v2/rerank": {"model": "encoder", "query": "hi", "documents": ["you"]},
    "/v1/score": {"model": "encoder", "text_1": "hi", "text_2": "you"},
}
UNSTREAMED = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score")


def service(worker: FakeWorker, *keys: str) -> Service:
    models = {
        "tiny": ServedModel(MODEL, worker.generate, created=1),
        "encoder": ServedModel(encoder(), worker.generate, created=1),
    }
    return Service(models, lambda: [WORKER], http_settings(), INGRESS, api_keys=keys)


def computing_paths() -> list[str]:
    """The routes as the application registers them, so that new ones are included."""
    anything = service(FakeWorker(lambda _: []))
    return [route.path for route in service_routes(Reception(anything), Metrics(anything.workers)) if route.computes]


def test_planning_needs_a_caller_and_a_request_needs_a_tenant() -> None:
    # Each `type: ignore` is checked too: mypy reports one that it does not need.
    chat = ChatCompletionRequest.model_validate(CHAT)
    completion = CompletionRequest.model_validate(BODIES["/v1/completions"])
    response = ResponseRequest.model_validate(BODIES["/v1/responses"])
    embedding = EmbeddingRequest.model_validate(BODIES["/v1/embeddings"])
    with pytest.raises(TypeError, match="caller"):
        plan_chat(MODEL, chat, LIMITS, request_id="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="caller"):
        plan_completion(MODEL, completion, LIMITS, request_id="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="caller"):
        plan_response(MODEL, response, LIMITS, request_id="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="caller"):
        plan_embeddings(MODEL, embedding, request_id="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tenant"):
        GenerateRequest("id", (1,), 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tenant"):
        Caller()  # type: ignore[call-arg]


@pytest.mark.parametrize("path", computing_paths())
@pytest.mark.parametrize("stream", [False, True])
async def test_every_computing_route_passes_its_caller_to_the_worker(path: str, stream: bool) -> None:
    def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
        return [RuntimeError("no vector")] if request.pooling or request.texts else [*deltas([5, 6])]

    worker = FakeWorker(script)
    body = BODIES[path] | ({"stream": True} if stream and path not in UNSTREAMED else {})
    async with http_client(build_http_app(service(worker, "key-of-ann", "key-of-bob"))) as client:
        for key in ("key-of-ann", "key-of-bob", "key-of-ann"):
            await client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
    first, second, third = (request.tenant for request in worker.requests)
    assert first == third != second
    assert len(first) == len(second) == 32


async def test_clients_without_a_key_are_told_apart_by_address_for_their_shares_only() -> None:
    worker = FakeWorker(lambda _: deltas([5]))
    built = service(worker)
    built = replace(built, behind_own_proxy=True)
    async with http_client(build_http_app(built)) as client:
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
            await client.post("/v1/chat/completions", json=CHAT, headers={"X-Redoubt-Client": address})
    first, second, third = worker.requests
    assert first.client == third.client != second.client
    assert len(first.client) == 32
    assert {request.tenant for request in worker.requests} == {b""}


async def test_a_route_without_a_key_check_fails_and_asks_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker(lambda _: deltas([5]))
    built = service(worker)
    reception = Reception(built)

    async def forgetful(request: Request) -> Response:
        def plan(body: ChatCompletionRequest, caller: Caller) -> Response:
            raise AssertionError("a request without a caller was planned")

        return await reception.read_and_plan(request, ChatCompletionRequest, plan)

    app = FastAPI()
    app.state.metrics, app.state.failures, app.state.retry_after_s = Metrics(built.workers), RecentFailures(), 3
    router = APIRouter(route_class=Guarded)  # and no Depends(KeyCheck(...))
    router.add_api_route("/forgetful", forgetful, methods=["POST"])
    app.include_router(router)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
        answer = await client.post("/forgetful", json=CHAT)
    assert answer.status_code == 500
    assert "RuntimeError" in caplog.text
    assert "caller_of" in caplog.text
    assert worker.requests == []
