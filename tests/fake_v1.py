"""A stand-in for the service's `/v1`, with the chat page, on a real socket: for the parts that are its HTTP clients.

It answers each chat with given words, one chunk a word, and records the requests and which answers their client cut
off.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from app.interface.routes.chat_page import ChatPage
from app.interface.routes.pages import PageFiles

MODEL = {
    "id": "fake-model",
    "object": "model",
    "created": 0,
    "max_context_tokens": 8192,
    "sampling": {"top_p": 0.9},
}
WORKER = {
    "worker_id": "0123456789",
    "model_names": ["fake-model"],
    "state": "alive",
    "speed": 41.5,
    "queue_length": 1,
    "running": 1,
    "waiting": 0,
    "generated_tokens_per_s": 40.25,
    "kv_pages": 100,
    "kv_pages_free": 90,
    "tier": "avx512_vnni",
    "last_heart_beat": 0,
}


@dataclass
class FakeV1:
    """The answers to give, and a record of the requests."""

    words: list[str] = field(default_factory=lambda: ["Hello", " from", " the", " fake", "."])
    thoughts: list[str] = field(default_factory=list)
    """Come before the words, as reasoning_content."""
    thinks_until: threading.Event | None = None
    """Where given, spaces are thought until it is set, and the words come then."""
    pause_s: float = 0.0
    error: tuple[int, str] | None = None
    """Status and message to answer with instead."""
    retry_after_s: int | None = None
    """With `error`: when to ask again."""
    finish_reason: str | None = "stop"
    """None: the connection breaks off after the words."""
    news: list[dict[str, Any]] = field(default_factory=list)
    """What to tell of the prompt before the words, to who asks."""
    thinking: dict[str, Any] | None = None
    """How the listed models think."""
    reasoning_cut: str | None = None
    """What has cut the thoughts, which then have no words behind them."""
    capabilities: tuple[str, ...] = ("completions", "embeddings", "chat")
    mute_models: tuple[str, ...] = ()
    """Further models, which have no chat template."""
    other_models: tuple[str, ...] = ()
    """Further models, which have one."""
    contexts: list[dict[str, Any]] = field(default_factory=list)
    """What the answers say of the context, one after the other."""
    key: str | None = None
    """Where given, clients must show it."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    cut_off: int = 0
    finished: int = 0
    url: str = ""

    def app(self) -> FastAPI:
        """The routes."""
        app = FastAPI()

        @app.get("/v1/models", response_model=None)
        async def models(request: Request) -> dict[str, Any] | Response:
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                return _error(401, "Show a key.")
            can: dict[str, tuple[str, ...]] = dict.fromkeys(self.mute_models, ("completions",))
            can |= dict.fromkeys(("fake-model", *self.other_models), self.capabilities)
            common = {**MODEL, "thinking": self.thinking}
            return {"object": "list", "data": [{**common, "id": name, "capabilities": can[name]} for name in can]}

        @app.get("/v1/workers")
        async def workers() -> dict[str, Any]:
            await asyncio.sleep(self.pause_s)
            return {"object": "list", "data": [WORKER]}

        @app.get("/health")
        async def health() -> dict[str, Any]:
            return {"status": "ok", "workers": 1}

        files = PageFiles()
        chat_page = ChatPage(files, None)
        app.add_api_route("/", chat_page.chat)
        app.add_api_route("/c/{name}", chat_page.conversation)
        app.add_api_route("/ui/{path:path}", files.file)

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            self.asked.append(await request.json())
            if self.error is not None:
                return _error(*self.error, self.retry_after_s)
            is_told = bool(self.asked[-1].get("return_progress"))
            return _Stream(self._stream(self.news if is_told else []), media_type="text/event-stream")

        return app

    async def _stream(self, news: list[dict[str, Any]]) -> AsyncGenerator[str, None]:
        done = False
        try:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "fake-model"}
            nothing = {"index": 0, "delta": {}, "finish_reason": None}
            for each in list(news):
                yield f"data: {json.dumps({**chunk, 'choices': [nothing], 'prompt_progress': each})}\n\n"
                await asyncio.sleep(self.pause_s)
            pieces = [{"reasoning_content": thought} for thought in self.thoughts]
            pieces += [{"reasoning_cut": self.reasoning_cut}] if self.reasoning_cut else []
            for piece in [*pieces, *({"content": word} for word in list(self.words))]:
                while "content" in piece and self.thinks_until is not None and not self.thinks_until.is_set():
                    await asyncio.sleep(0.2)
                    yield _piece(chunk, {"reasoning_content": " "})
                yield _piece(chunk, piece)
                await asyncio.sleep(self.pause_s)
            if self.finish_reason is None:
                raise ConnectionError
            end = {"index": 0, "delta": {}, "finish_reason": self.finish_reason}
            yield f"data: {json.dumps({**chunk, 'choices': [end]})}\n\n"
            usage: dict[str, Any] = {"prompt_tokens": 1300, "completion_tokens": len(self.words)}
            usage |= {"prompt_tokens_details": {"cached_tokens": 1100}}
            context = {"context": self.contexts.pop(0)} if self.contexts else {}
            yield f"data: {json.dumps({**chunk, 'choices': [], 'usage': usage, **context})}\n\n"
            yield "data: [DONE]\n\n"
            done = True
        finally:
            self.finished += done
            self.cut_off += not done


class _Stream(StreamingResponse):
    """One whose content ends at once when the client goes, also while a piece is being sent."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(cast("AsyncGenerator[str, None]", self.body_iterator)):
            await super().stream_response(send)


def _piece(chunk: dict[str, Any], delta: dict[str, Any]) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"


def _error(status: int, message: str, retry_after_s: int | None = None) -> JSONResponse:
    body = {"error": {"message": message, "type": "error", "param": None, "code": None}}
    wait = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return JSONResponse(body, status_code=status, headers={"x-request-id": "req_1", **wait})


@contextmanager
def running(fake: FakeV1, prepare: Callable[[FastAPI], None] | None = None, *, port: int = 0) -> Iterator[FakeV1]:
    """Serves the fake on the loopback interface, with what `prepare` adds to its routes. port: 0: a free one."""
    app = fake.app()
    if prepare is not None:
        prepare(app)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_keep_alive=600))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (listener,) = server.servers[0].sockets
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join(timeout=10)
