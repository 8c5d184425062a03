"""A model is replaced while requests for it are planned and answered, over the whole HTTP application."""

import json
from collections.abc import AsyncGenerator
from copy import copy
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi import FastAPI

from app.interface.generate.service import ServedModel, Service
from app.interface.http_api import build_http_app
from app.messages.failures import ModelReplacedError
from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.service import INGRESS, WORKER, http_client, http_settings
from tests.app.tiny_model import HIDDEN_SIZE, tiny_model

TEMPLATES = [f"{version}: {{{{ messages[0].content }}}}" for version in ("old", "new", "newest")]


class RollingService:
    """Workers run version `runs`; the ingress learns of it when it searches. Their answer is the prompt itself."""

    def __init__(
        self, runs: int, *, breaks_off_after: int = 0, changes_again: bool = False, keep_alive_comment_s: float = 15.0
    ) -> None:
        self.runs = runs
        self.looks = 0
        self._breaks_off_after = breaks_off_after
        self._changes_again = changes_again
        self._keep_alive_comment_s = keep_alive_comment_s
        self.asked: list[GenerateRequest] = []
        self._models = [self._version(i) for i in range(len(TEMPLATES))]
        self.models = {"tiny": self._models[0]}

    def _version(self, number: int) -> ServedModel:
        chat = copy(tiny_model(TEMPLATES[number]))
        chat.identity = f"{number}"
        return ServedModel(chat, self.generate, created=1)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        self.asked.append(request)
        if request.pooling is not None and request.model_identity == f"{self.runs}":
            yield TokenDelta((), "stop", prompt=PromptResult(embedding=np.ones(HIDDEN_SIZE, np.float32)))
            return
        for token in request.prompt_token_ids[: self._breaks_off_after]:
            yield TokenDelta((token,))
        if request.model_identity != f"{self.runs}":
            raise ModelReplacedError("The model was replaced by another version. Try again.")
        yield TokenDelta(request.prompt_token_ids[self._breaks_off_after :], "stop")

    async def follow(self) -> None:
        self.looks += 1
        self.models["tiny"] = self._models[self.runs]
        if self._changes_again:
            self.runs = (self.runs + 1) % len(TEMPLATES)

    def app(self) -> FastAPI:
        settings = http_settings(keep_alive_comment_s=self._keep_alive_comment_s)
        return build_http_app(Service(self.models, lambda: [WORKER], settings, INGRESS, follow_models=self.follow))


async def ask(service: RollingService, *, stream: bool = False, path: str = "chat/completions") -> httpx2.Response:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    if path == "embeddings":
        prompt = {"input": "hi"}
    elif path == "responses":
        prompt = {"input": "hi", "store": False}
    body = {"model": "tiny", **prompt} | ({"stream": True} if stream else {})
    async with http_client(service.app()) as client:
        return await client.post(f"/v1/{path}", json=body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_planned_again_for_the_model_that_is_there(stream: bool) -> None:
    service = RollingService(runs=1)
    response = await ask(service, stream=stream)
    assert response.status_code == 200
    assert "new: hi" in response.text
    assert "old" not in response.text
    assert [request.model_identity for request in service.asked] == ["0", "1"]
    assert (await ask(service)).status_code == 200
    assert service.looks == 1


@pytest.mark.parametrize("path", ["embeddings", "responses"])
async def test_so_are_other_kinds(path: str) -> None:
    service = RollingService(runs=1)
    assert (await ask(service, path=path)).status_code == 200
    assert [request.model_identity for request in service.asked] == ["0", "1"]


async def test_a_name_that_is_new_is_looked_for() -> None:
    service = RollingService(runs=1)
    del service.models["tiny"]
    assert (await ask(service)).status_code == 200
    assert service.looks == 1
    async with http_client(service.app()) as client:
        body = {"model": "unknown", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 404
    assert service.looks < 5


async def test_a_model_that_is_replaced_again_and_again_is_not_waited_for() -> None:
    service = RollingService(runs=1, changes_again=True)
    response = await ask(service)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["message"] == "The model was replaced by another version. Try again."
    assert (service.looks, len(service.asked)) == (2, 3)


async def test_an_answer_that_was_seen_ends_with_a_clear_error() -> None:
    service = RollingService(runs=1, breaks_off_after=2)
    response = await ask(service, stream=True)
    assert response.status_code == 200
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["message"] == "The model was replaced by another version. Try again."
    assert len(service.asked) == 1
