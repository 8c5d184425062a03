"""The whole HTTP application over a fake worker, and a loopback server for what needs real sockets."""

import functools
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import fastapi.dependencies.utils
import fastapi.routing
import httpx2
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI

from app.interface.generate.service import IngressFacts, ServedModel, Service
from app.interface.http_api import build_http_app
from app.interface.request.access_log import AccessLog
from app.interface.request.traces import Traces
from app.interface.routes import pages
from app.interface.text.chat_model import ChatModel
from app.interface.users.gate import AccountsGate
from app.messages.outputs import Generate
from app.messages.workers import WorkerRow
from app.settings.accounts import BatchSettings
from app.settings.ingress import IngressSettings
from tests.app.tiny_model import CONTEXT_TOKENS, tiny_model


def _read_once() -> None:
    """Tests build thousands of applications, of the same endpoints and pages: what those are is looked up once each."""

    def by_code(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        known: dict[object, Any] = {}

        def read_once(call: Any) -> Any:
            if isinstance(call, (type, functools.partial)) or hasattr(call, "__wrapped__"):
                return read(call)  # of many of these the code is one
            code = getattr(call, "__func__", None) or getattr(call, "__code__", None) or type(call)
            if code not in known:
                known[code] = read(call)
            return known[code]

        return read_once

    modules: tuple[Any, ...] = (fastapi.dependencies.utils, fastapi.routing, pages)
    utils, routing, files = modules
    utils.get_typed_signature = by_code(utils.get_typed_signature)
    routing.get_typed_return_annotation = by_code(utils.get_typed_return_annotation)
    files._read = functools.cache(files._read)


_read_once()
MODEL = tiny_model()
INGRESS = IngressFacts(id="i1", node="here", replicas=1, version="1.2.3", up_since=4.5)
WORKER = WorkerRow(
    worker_id="w1",
    node="here",
    pid=1,
    model_names=("tiny",),
    speed=10.0,
    queue_length=0,
    check_heart_beat=True,
    last_heart_beat=5.0,
    state="alive",
    running=0,
    waiting=0,
    batch=3,
    kv_pages=8,
    kv_pages_free=6,
    kv_pages_cached=5,
    computed_tokens=100,
    cached_tokens=30,
    generated_tokens=40,
    preemptions=2,
    cpus=(0, 1),
    numa_node=0,
    memory_bound=True,
    max_context_tokens=CONTEXT_TOKENS,
    tier="scalar",
    ready_since=4,
    max_running=2,
    max_waiting=4,
    generated_tokens_per_s=8.5,
    admitted=20,
    queued_s=1.5,
    saved_bytes=3000,
    max_saved_bytes=9000,
    draft="tinier",
    drafts={"lookup": (5, 2), "model": (7, 6)},
)


def http_settings(**changed: Any) -> IngressSettings:
    """Those of tests. A value that the configuration would refuse, as no place at all, is taken."""
    values = {"default_max_tokens": 64, "max_choices": 4, "max_body_bytes": 1 << 20, "retry_after_s": 3}
    return IngressSettings().model_copy(update=values | changed)


def http_app(
    generate: Generate,
    *,
    workers: Callable[[], Sequence[WorkerRow]] | Sequence[WorkerRow] = (WORKER,),
    model: ChatModel = MODEL,
    accounts: AccountsGate | None = None,
    access_log: AccessLog | None = None,
    traces: Traces | None = None,
    api_keys: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    behind_own_proxy: bool = False,
    batches: BatchSettings | None = None,
    **settings: Any,
) -> FastAPI:
    served = ServedModel(model, generate, created=123, aliases=aliases)
    rows = workers if callable(workers) else lambda: list(workers)
    service = Service(
        {"tiny": served},
        rows,
        http_settings(**settings),
        INGRESS,
        api_keys=api_keys,
        behind_own_proxy=behind_own_proxy,
        access_log=access_log,
        traces=traces,
    )
    return build_http_app(service, accounts, batches=batches)


def http_client(app: FastAPI) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")


def openai_client(app: FastAPI) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url="http://test/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(app)),
    )


@contextmanager
def loopback_server(app: FastAPI) -> Iterator[str]:
    """Serves on a free port, in a thread; gives the address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        # A connection that stands idle while the machine pauses is kept.
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_keep_alive=600)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()


async def never(_: Any) -> AsyncGenerator[Any, None]:
    raise AssertionError("no worker should be asked")
    yield
