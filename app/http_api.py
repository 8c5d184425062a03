"""The HTTP application: which path leads to which route.

It gets what it serves as plain objects and callables, so it knows nothing of Ray. No prompt and no answer
is ever logged: a failure is known by its request id, its type and where it happened.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from app import errors
from app.http_guard import Guarded, KeyCheck, http_error
from app.http_service import Reception, ServedModel, Service
from app.metrics import Metrics
from app.routes.completions import CompletionRoutes
from app.routes.embeddings import EmbeddingRoutes
from app.routes.metrics import MetricsRoute
from app.routes.models import ModelRoutes
from app.routes.responses import ResponseRoutes
from app.routes.tokenization import TokenizationRoutes

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class _Route:
    method: str
    path: str
    endpoint: Callable[..., Any]


def build_http_app(service: Service) -> FastAPI:
    """The application without the chat page. No CORS: other sites' pages have no business here."""
    app = FastAPI(title="Redoubt", docs_url=None, redoc_url=None, openapi_url=None)
    metrics = Metrics(service.workers)
    app.state.metrics = metrics  # where the guards find it
    service = replace(service, models=_Observed(service.models, metrics))
    guarded = APIRouter(route_class=Guarded, dependencies=[Depends(KeyCheck(service.settings.api_keys))])
    routes = _routes(service, metrics)
    for route in routes:
        guarded.add_api_route(route.path, route.endpoint, methods=[route.method])
    # The chat page is mounted behind these routes and would answer what they don't: they answer all of it.
    unknown = _unknown(routes)
    for path in ("/v1/{path:path}", *(route.path for route in routes if not route.path.startswith("/v1/"))):
        guarded.add_api_route(path, unknown, methods=list(_METHODS))
    app.include_router(guarded)
    app.add_api_route("/health", ModelRoutes(service).health, methods=["GET"])
    app.add_exception_handler(HTTPException, http_error)
    return app


class _Observed(Mapping[str, ServedModel]):
    """The models as they are now, for they come and go; what each generates is counted."""

    def __init__(self, models: Mapping[str, ServedModel], metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics

    def __getitem__(self, name: str) -> ServedModel:
        model = self._models[name]
        return replace(model, generate=self._metrics.observed(name, model.generate))

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def _routes(service: Service, metrics: Metrics) -> Sequence[_Route]:
    reception = Reception(service)
    models, completions = ModelRoutes(service), CompletionRoutes(reception)
    tokenization = TokenizationRoutes(reception)
    return (
        _Route("GET", "/v1/models", models.models),
        _Route("GET", "/v1/models/{name:path}", models.model),
        _Route("GET", "/v1/workers", models.workers),
        _Route("POST", "/v1/chat/completions", completions.chat_completions),
        _Route("POST", "/v1/completions", completions.completions),
        _Route("POST", "/v1/responses", ResponseRoutes(reception).responses),
        _Route("POST", "/v1/embeddings", EmbeddingRoutes(reception).embeddings),
        _Route("GET", "/metrics", MetricsRoute(metrics).metrics),
        _Route("POST", "/tokenize", tokenization.tokenize),
        _Route("POST", "/detokenize", tokenization.detokenize),
    )


def _unknown(routes: Sequence[_Route]) -> Callable[[Request], Any]:
    """What answers any other path under `/v1`, and any other method."""

    async def unknown(request: Request) -> Response:
        path = request.url.path
        for route in routes:
            fixed, _, variable = route.path.partition("{")
            if path.startswith(fixed) if variable else path == fixed:
                raise errors.wrong_method(request.method, route.method)
        raise errors.no_such_route(request.method, path)

    return unknown
