"""The HTTP application: its routes, and what each of them does.

It gets what it serves as plain objects and callables, so it knows nothing of Ray. No prompt and no answer
is ever logged: a failure is known by its request id, its type and where it happened.
"""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from app import answers, errors, generation
from app.answer_types import Model, ModelList
from app.chat import ChatModel
from app.errors import ApiError
from app.generation import Generate, Job, Limits
from app.http_guard import Guarded, KeyCheck, http_error, json_response, read_body
from app.openai_types import ChatCompletionRequest, CompletionRequest
from app.sse import ClientGoneError, EventStream, until_disconnect
from app.validation import parse
from app.worker_table import WorkerRow

AnyRequest = TypeVar("AnyRequest", ChatCompletionRequest, CompletionRequest)
Plan = Callable[[ChatModel, AnyRequest, Limits, str], Job]

LONG_BODY_BYTES = 16 * 1024
"""Bodies from here on are parsed, rendered and tokenized in a thread, so that other streams go on."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients may name, and the way to its workers."""

    chat: ChatModel
    generate: Generate
    created: int
    """Unix seconds: when it was loaded."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What of the service's settings concerns HTTP."""

    limits: Limits
    max_body_bytes: int
    retry_after_s: int
    api_keys: tuple[str, ...] = ()
    """Keys of which a client must show one; none: everybody who reaches the address is served."""


@dataclass(frozen=True, slots=True)
class Service:
    """Everything the routes need."""

    models: Mapping[str, ServedModel]
    workers: Callable[[], Sequence[WorkerRow]]
    settings: HttpSettings


def build_http_app(service: Service) -> FastAPI:
    """The application without the chat page. No CORS: other sites' pages have no business here."""
    app = FastAPI(title="Redoubt", docs_url=None, redoc_url=None, openapi_url=None)
    routes = _Routes(service)
    v1 = APIRouter(prefix="/v1", route_class=Guarded, dependencies=[Depends(KeyCheck(service.settings.api_keys))])
    v1.add_api_route("/models", routes.models, methods=["GET"])
    v1.add_api_route("/models/{name:path}", routes.model, methods=["GET"])
    v1.add_api_route("/workers", routes.workers, methods=["GET"])
    v1.add_api_route("/chat/completions", routes.chat_completions, methods=["POST"])
    v1.add_api_route("/completions", routes.completions, methods=["POST"])
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    # The chat page is mounted behind these routes and would answer what they don't: they answer all of it.
    v1.add_api_route("/{path:path}", routes.unknown, methods=methods)
    app.include_router(v1)
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_exception_handler(HTTPException, http_error)
    return app


class _Routes:
    """The endpoints, as methods over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settings = service.settings
        # Two: tokenizing leaves Python's lock, but the cores belong to the workers.
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")

    async def models(self) -> Response:
        """`GET /v1/models`."""
        return json_response(ModelList(data=[self._model(name) for name in self._service.models]).model_dump())

    async def model(self, name: str) -> Response:
        """`GET /v1/models/{id}`."""
        if name not in self._service.models:
            raise errors.no_such_model(name)
        return json_response(self._model(name).model_dump())

    async def workers(self) -> Response:
        """`GET /v1/workers`: the worker table."""
        rows = [dataclasses.asdict(row) for row in self._service.workers()]
        return json_response({"object": "list", "data": rows})

    async def health(self) -> Response:
        """`GET /health`: 200 while at least one worker can take a request, else 503."""
        alive = sum(row.check_heart_beat for row in self._service.workers())
        if alive:
            return json_response({"status": "ok", "workers": alive})
        body = {"status": "unavailable", "workers": 0}
        return json_response(body, 503, {"Retry-After": str(self._settings.retry_after_s)})

    async def unknown(self, request: Request) -> Response:
        """Any other path or method under `/v1`."""
        path = request.url.path
        for route, method in _METHODS.items():
            if path == route or (route == "/v1/models" and path.startswith(f"{route}/")):
                raise errors.wrong_method(request.method, method)
        raise errors.no_such_route(request.method, path)

    async def chat_completions(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._answer(request, "chat", ChatCompletionRequest, generation.plan_chat)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await self._answer(request, "completion", CompletionRequest, generation.plan_completion)

    async def _answer(
        self,
        request: Request,
        kind: Literal["chat", "completion"],
        body_type: type[AnyRequest],
        plan: Plan[AnyRequest],
    ) -> Response:
        response_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
        raw = await read_body(request, self._settings.max_body_bytes)
        as_api_error = self._as_api_error(response_id)
        try:
            body, served, job = await self._prepared(raw, body_type, plan, response_id)
            job = generation.of_tenant(job, request.state.tenant)
            envelope = answers.Envelope(kind, response_id, int(time.time()), body.model, body.include_usage)
            deltas = generation.stream(job, served.chat, served.generate)
            if not body.stream:
                answer = await until_disconnect(request.receive, answers.whole(envelope, job, deltas))
                return Response(answer.model_dump_json(), media_type="application/json")
            # Not before the worker has begun: until then an error is still an HTTP status.
            first = await self._first(request, deltas)
        except (ApiError, ClientGoneError):
            raise
        except Exception as error:
            raise as_api_error(error) from None
        return EventStream(answers.events(envelope, job, first, deltas, as_api_error), deltas)

    @staticmethod
    async def _first(request: Request, deltas: answers.Deltas) -> list[generation.ChoiceDelta]:
        async def first() -> list[generation.ChoiceDelta]:
            return await anext(deltas)

        try:
            return await until_disconnect(request.receive, first())
        except BaseException:
            await deltas.aclose()
            raise

    async def _prepared(
        self, raw: bytes, body_type: type[AnyRequest], plan: Plan[AnyRequest], response_id: str
    ) -> tuple[AnyRequest, ServedModel, Job]:
        def prepare() -> tuple[AnyRequest, ServedModel, Job]:
            body = parse(body_type, raw)
            if body.stream_options is not None and not body.stream:
                message = "'stream_options' is allowed only with 'stream': true."
                raise errors.invalid(message, "stream_options", "invalid_value")
            served = self._service.models.get(body.model)
            if served is None:
                raise errors.no_such_model(body.model)
            return body, served, plan(served.chat, body, self._settings.limits, response_id)

        if len(raw) < LONG_BODY_BYTES:
            return prepare()
        return await asyncio.get_running_loop().run_in_executor(self._threads, prepare)

    def _as_api_error(self, request_id: str) -> Callable[[Exception], ApiError]:
        return lambda error: answers.as_api_error(error, request_id, self._settings.retry_after_s)

    def _model(self, name: str) -> Model:
        served = self._service.models[name]
        return Model(id=name, created=served.created, max_context_tokens=served.chat.context_tokens)


_METHODS: Mapping[str, str] = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/models": "GET",
    "/v1/workers": "GET",
}
