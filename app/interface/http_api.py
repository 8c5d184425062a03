"""Builds the HTTP application: registers the routes and middlewares.

It gets what it serves as plain objects and callables, so it knows nothing of Ray. Nothing logs a prompt or an answer:
the log has a failure's request id, type and place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Lifespan

from app.interface.documents.openapi import AnthropicErrorAnswer, Route, document
from app.interface.encode.encoders import Encoders
from app.interface.generate.attached import AttachedFiles
from app.interface.generate.generation import Stored, stages_of
from app.interface.generate.reception import Reception, Work
from app.interface.generate.service import Service
from app.interface.http.guard import Guarded, LingeringClose, http_error
from app.interface.http.hosts import ANY, AllowedHosts, HostCheck
from app.interface.http.metrics import Metrics
from app.interface.http.origins import AllowedOrigins
from app.interface.http.paths import VersionlessPaths, hint_of
from app.interface.http.places import BodyDeadline, OpenRequests, Places
from app.interface.http.watched_requests import WatchedRequests
from app.interface.request import errors
from app.interface.request.callers import KeyCheck
from app.interface.request.client_address import ClientAddresses
from app.interface.request.recent_failures import RecentFailures
from app.interface.routes.attached import AttachedRoutes
from app.interface.routes.chat import CHAT, ChatRoutes
from app.interface.routes.chat_page import ChatPage
from app.interface.routes.completions import COMPLETIONS, CompletionRoutes
from app.interface.routes.documents import DocumentRoutes
from app.interface.routes.embeddings import EMBEDDINGS, EmbeddingRoutes
from app.interface.routes.messages import MessageRoutes
from app.interface.routes.metrics import MetricsRoute
from app.interface.routes.models import ModelRoutes
from app.interface.routes.pages import PageFiles
from app.interface.routes.rerank import RerankRoutes
from app.interface.routes.responses import RESPONSES, ResponseRoutes
from app.interface.routes.tokenization import TokenizationRoutes
from app.interface.users.batches.runner import BatchRunner
from app.interface.users.checks import AdmissionCheck, LoginCheck, UserCheck, check_admin
from app.interface.users.collection_routes import collection_routes, knowledge_of
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.capacity import CapacityRoutes
from app.interface.users.routes.files import stored_documents
from app.interface.users.routes.operator import OperatorRoutes
from app.interface.users.stored_answers import StoredAnswers
from app.interface.users.user_routes import operator_routes, user_routes
from app.interface.wire.attached import DocumentObject, DocumentUpload
from app.interface.wire.chat import ChatCompletion, ChatCompletionRequest
from app.interface.wire.completions import Completion, CompletionRequest
from app.interface.wire.embeddings import EmbeddingRequest, EmbeddingResponse
from app.interface.wire.messages import AnthropicMessage, CountTokensRequest, MessagesRequest, PromptLength
from app.interface.wire.models import Health, Liveness, Model, ModelList, Readiness, WorkerList
from app.interface.wire.rerank import RerankRequest, RerankResponse, RerankV2Request, ScoreRequest, ScoreResponse
from app.interface.wire.responses import InputTokens, InputTokensRequest, ResponseObject, ResponseRequest
from app.interface.wire.tokenization import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from app.settings.accounts import BatchSettings

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def build_http_app(
    service: Service,
    accounts: AccountsGate | None = None,
    lifespan: Lifespan[FastAPI] | None = None,
    batches: BatchSettings | None = None,
) -> FastAPI:
    """Builds the application. Other web sites may use it only from allowed origins.

    accounts: the users; None: there are none. lifespan: runs from before the first request until after the last.
    batches: what users' batches may take. `app.state.batches` is what runs them, which `lifespan` is to start.
    """
    batches = batches or BatchSettings()
    app = FastAPI(
        title="Redoubt", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=lifespan
    )
    metrics = Metrics(service.workers, lambda: list(service.models), service.ingress.id, service.ingress.version)
    failures = RecentFailures()
    places = Places(service.settings.max_ongoing_requests)
    metrics.watch_places(lambda: places.taken, places.limit)
    if service.access_log is not None:
        service.access_log.on_drop = metrics.log_line_dropped
    app.state.metrics = metrics  # this and the next two are for the guards
    app.state.failures = failures
    app.state.retry_after_s = service.settings.retry_after_s
    app.state.addresses = ClientAddresses(service.settings.trusted_proxies, behind_own_proxy=service.behind_own_proxy)
    service = replace(service, counting=metrics.counting)
    reading, document_bytes = service.document_reader(), service.settings.document_bytes
    reception = Reception(
        service, AttachedFiles(reading, None if accounts is None else stored_documents(accounts, document_bytes))
    )
    knowledge = None if accounts is None else knowledge_of(accounts, reception)
    stored = None if accounts is None or knowledge is None else StoredAnswers(accounts, knowledge.file_search)
    routes = service_routes(reception, metrics, stored)
    app.state.batches = None
    if accounts is not None and stored is not None and knowledge is not None:
        app.state.batches = runner = BatchRunner(accounts, reception, batch_works(reception, stored), batches)
        limited = {429: "A limit of the user's, or every worker's queue is full; `Retry-After` says when to try again."}
        operator = OperatorRoutes(service, accounts, places, failures)
        capacity = CapacityRoutes(service, accounts)
        routes = (
            *routes,
            *user_routes(accounts, reception, runner, batches.file_bytes),
            *collection_routes(knowledge.routes),
            *operator_routes(operator, capacity),
            stored_document_route(AttachedRoutes(reception)),
        )
        routes = tuple(
            replace(route, refuses={**route.refuses, **limited}) if route.computes else route for route in routes
        )
    has_keys = bool(service.api_keys) or accounts is not None
    described = DocumentRoutes(document(routes, has_keys=has_keys))
    routes = (
        *routes,
        Route("GET", "/openapi.json", described.openapi, "This document.", "application/json", open=True),
        Route("GET", "/docs", described.docs, "The same to read.", "text/html", open=True),
    )
    routes = (*routes, *page_routes(PageFiles(), accounts))
    check = Depends(KeyCheck(service.api_keys) if accounts is None else UserCheck(accounts))
    # Not by routers of their own: FastAPI would build each route twice, the second time in the first request.
    app.router.route_class = Guarded
    ordered = sorted(routes, key=lambda route: not route.open)
    for route in ordered:
        dependencies = [] if route.open else [check]
        if accounts is not None and route.computes:
            dependencies.append(Depends(AdmissionCheck(accounts)))
        if route.admin:
            dependencies.append(Depends(check_admin))
        app.router.add_api_route(route.path, route.endpoint, methods=_methods(route), dependencies=dependencies)
    # Other methods of these paths, and unknown paths below /v1, are refused in the API's error format.
    unknown = _unknown(routes)
    others = [(route.path, [] if route.open else [check]) for route in ordered if not route.path.startswith("/v1/")]
    for path, dependencies in (*others, ("/v1/{path:path}", [check])):
        app.router.add_api_route(path, unknown, methods=list(_METHODS), dependencies=dependencies)
    app.add_exception_handler(HTTPException, http_error)
    app.state.paths = tuple(dict.fromkeys(route.shown_path for route in routes))  # for hints
    settings = service.settings
    # The last one added is the outermost.
    app.add_middleware(
        BodyDeadline, slow_limit=max(1, settings.max_ongoing_requests // 4), retry_after_s=settings.retry_after_s
    )
    app.add_middleware(OpenRequests, places=places, retry_after_s=settings.retry_after_s)
    if settings.allowed_origins:
        app.add_middleware(AllowedOrigins, origins=settings.allowed_origins)
    app.add_middleware(HostCheck, hosts=AllowedHosts(_further_hosts(service, accounts)))
    app.add_middleware(VersionlessPaths)
    app.add_middleware(WatchedRequests, metrics=metrics, log=service.access_log, traces=service.traces)
    app.add_middleware(LingeringClose)
    return app


def _further_hosts(service: Service, accounts: AccountsGate | None) -> Sequence[str]:
    """Returns the names for `AllowedHosts`: all if every request needs a credential, which other sites do not have."""
    if service.settings.allowed_hosts is not None:
        return service.settings.allowed_hosts
    needs_credential = bool(service.api_keys) if accounts is None else not accounts.guests
    return (ANY,) if needs_credential else ()


def service_routes(reception: Reception, metrics: Metrics, stored: Stored | None = None) -> Sequence[Route]:
    """Returns the endpoints of the API. stored: what is stored for users."""
    service = reception.service
    models, chat, completions = ModelRoutes(service), ChatRoutes(reception), CompletionRoutes(reception)
    messages = MessageRoutes(reception)
    encoders = Encoders(service)
    responses, embeddings = ResponseRoutes(reception, stored), EmbeddingRoutes(reception, encoders)
    rerank = RerankRoutes(reception, encoders)
    tokenization, series = TokenizationRoutes(reception), MetricsRoute(metrics)
    attached = AttachedRoutes(reception)
    return (
        Route(
            "POST",
            "/v1/chat/completions",
            chat.chat_completions,
            "Answers a conversation.",
            ChatCompletion,
            ChatCompletionRequest,
            computes=True,
            streams=True,
        ),
        Route(
            "POST",
            "/v1/completions",
            completions.completions,
            "Goes on with a prompt.",
            Completion,
            CompletionRequest,
            computes=True,
            streams=True,
        ),
        Route(
            "POST",
            "/v1/responses",
            responses.responses,
            "Answers items; of users they are stored.",
            ResponseObject,
            ResponseRequest,
            computes=True,
            streams=True,
        ),
        Route(
            "POST",
            "/v1/responses/input_tokens",
            responses.input_tokens,
            "The length of a response's prompt.",
            InputTokens,
            InputTokensRequest,
        ),
        Route(
            "POST",
            "/v1/messages",
            messages.messages,
            "Answers a conversation, as Anthropic's API does.",
            AnthropicMessage,
            MessagesRequest,
            computes=True,
            streams=True,
            failure=AnthropicErrorAnswer,
        ),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            messages.count_tokens,
            "The length of a message's prompt.",
            PromptLength,
            CountTokensRequest,
            failure=AnthropicErrorAnswer,
        ),
        Route(
            "POST",
            "/v1/embeddings",
            embeddings.embeddings,
            "Texts as vectors.",
            EmbeddingResponse,
            EmbeddingRequest,
            computes=True,
        ),
        Route(
            "POST",
            "/v1/rerank",
            rerank.rerank,
            "Documents by how well they answer a query.",
            RerankResponse,
            RerankRequest,
            computes=True,
        ),
        Route(
            "POST",
            "/v2/rerank",
            rerank.rerank_v2,
            "The same, as Cohere's second API has it.",
            RerankResponse,
            RerankV2Request,
            computes=True,
        ),
        Route(
            "POST",
            "/v1/score",
            rerank.score,
            "How well texts go together, pair by pair.",
            ScoreResponse,
            ScoreRequest,
            computes=True,
        ),
        Route(
            "POST",
            "/v1/documents",
            attached.document,
            "What a model would see of a file; nothing is kept.",
            DocumentObject,
            DocumentUpload,
            is_form=True,
            refuses={413: "The file is too large.", 415: "The body is no form."},
        ),
        Route("GET", "/v1/models", models.models, "The models that are served.", ModelList),
        Route("GET", "/v1/models/{name:path}", models.model, "One of them.", Model),
        Route("GET", "/v1/workers", models.workers, "The worker table.", WorkerList),
        Route("POST", "/tokenize", tokenization.tokenize, "A text's tokens.", TokenizeResponse, TokenizeRequest),
        Route("POST", "/detokenize", tokenization.detokenize, "Tokens' text.", DetokenizeResponse, DetokenizeRequest),
        Route("GET", "/metrics", series.metrics, "Series in Prometheus' format.", "text/plain"),
        Route("GET", "/health", models.health, "Whether a worker is up.", Health, open=True, unavailable=Health),
        Route("GET", "/livez", models.livez, "Whether this ingress answers.", Liveness, open=True),
        Route(
            "GET",
            "/readyz",
            models.readyz,
            "Whether a model has a worker.",
            Readiness,
            open=True,
            unavailable=Readiness,
        ),
    )


def stored_document_route(attached: AttachedRoutes) -> Route:
    """Returns the route that reads a user's stored file."""
    return Route(
        "GET",
        "/v1/files/{id}/document",
        attached.stored,
        "What a model would see of a stored file.",
        DocumentObject,
        query={"model": "Whose tokens are counted; the first of `/v1/models` by default."},
        refuses={404: "There is no such file, or it is another user's."},
    )


def batch_works(reception: Reception, stored: Stored) -> Mapping[str, Work[Any]]:
    """Returns what lines of batches may ask for, by path."""
    service = reception.service
    return {
        "/v1/chat/completions": Work(CHAT, stages_of(service, CHAT)),
        "/v1/completions": Work(COMPLETIONS, stages_of(service, COMPLETIONS)),
        "/v1/responses": Work(RESPONSES, stages_of(service, RESPONSES, stored.stages)),
        "/v1/embeddings": Work(EMBEDDINGS, EmbeddingRoutes(reception, Encoders(service)).stages),
    }


def page_routes(pages: PageFiles, accounts: AccountsGate | None) -> Sequence[Route]:
    """Returns the routes of the web pages, which browsers get without a credential."""
    chat = ChatPage(pages, None if accounts is None else LoginCheck(accounts))
    always = (
        Route("GET", "/", chat.chat, "The chat page.", "text/html", open=True),
        Route("GET", "/c/{name}", chat.conversation, "The chat page with a conversation.", "text/html", open=True),
        Route("GET", "/ui/{path:path}", pages.file, "Scripts and styles.", "text/javascript", open=True),
    )
    if accounts is None:
        return always
    return (
        *always,
        Route("GET", "/login", pages.login, "The page to log in.", "text/html", open=True),
        Route("GET", "/account", pages.account, "The page about one's account.", "text/html", open=True),
        Route("GET", "/operator", pages.operator, "The page for administrators.", "text/html", open=True),
    )


def _methods(route: Route) -> list[str]:
    return [route.method, "HEAD"] if route.method == "GET" else [route.method]


def _unknown(routes: Sequence[Route]) -> Callable[[Request], Any]:
    """Returns the endpoint of any other path under `/v1`, and of any other method."""
    paths = [(compile_path(route.path)[0], _methods(route)) for route in routes]

    async def unknown(request: Request) -> Response:
        path = request.url.path
        found = (method for pattern, methods in paths if pattern.match(path) for method in methods)
        allowed = list(dict.fromkeys(found))
        if allowed:
            raise errors.wrong_method(request.method, ", ".join(allowed))
        raise errors.no_such_route(request.method, path, hint_of(request))

    return unknown
