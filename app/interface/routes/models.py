"""`/v1/models`, `/v1/workers`, `/health`, `/livez` and `/readyz`: the served models and their workers."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.service import ServedModel, Service
from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.anthropic_errors import VERSION_HEADER
from app.interface.text.encoder_model import EncoderModel
from app.interface.wire.messages import AnthropicModel, AnthropicModels
from app.interface.wire.models import Capability, Liveness, Model, ModelList, Readiness, Thinking

_MODELS_OF_A_PAGE: Final = 20
_MOST_MODELS_OF_A_PAGE: Final = 1000


class ModelRoutes:
    """The routes of one service. None asks a worker or reads a body."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        if VERSION_HEADER in request.headers:
            return json_response(self._page(request.query_params).model_dump())
        return json_response(ModelList(data=[self._model(name) for name in self._service.models]).model_dump())

    async def model(self, request: Request, name: str) -> Response:
        """`GET /v1/models/{id}`. Without an id, as some clients ask for the list, returns the list."""
        if not name:
            return await self.models(request)
        if VERSION_HEADER in request.headers:
            return json_response(self._anthropic_model(name).model_dump())
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
        return json_response(body, 503, {"Retry-After": str(self._service.settings.retry_after_s)})

    async def livez(self) -> Response:
        """`GET /livez`: 200 as long as this ingress answers, whatever the state of workers."""
        return json_response(Liveness().model_dump())

    async def readyz(self) -> Response:
        """`GET /readyz`: 200 while a model has a worker that can take a request, else 503."""
        models = {name for row in self._service.workers() if row.check_heart_beat for name in row.model_names}
        if models:
            return json_response(Readiness(status="ok", models=len(models)).model_dump())
        body = Readiness(status="unavailable", models=0).model_dump()
        return json_response(body, 503, {"Retry-After": str(self._service.settings.retry_after_s)})

    def _is_asleep(self, name: str) -> bool:
        alive = [row.asleep for row in self._service.workers() if row.check_heart_beat and name in row.model_names]
        return bool(alive) and all(alive)

    def _page(self, query: Mapping[str, str]) -> AnthropicModels:
        """Returns the part of the list that a client of Anthropic's API asks for. Raises ApiError (400)."""
        names = list(self._service.models)
        limit = query.get("limit", str(_MODELS_OF_A_PAGE))
        if not (limit.isdecimal() and len(limit) <= 4 and 1 <= int(limit) <= _MOST_MODELS_OF_A_PAGE):
            message = f"'limit' should be a number from 1 to {_MOST_MODELS_OF_A_PAGE}."
            raise errors.invalid(message, "limit", "invalid_value")
        after, before = query.get("after_id"), query.get("before_id")
        if after in names:
            names = names[names.index(after) + 1 :]
        if before in names:
            names = names[: names.index(before)]
        page = names[-int(limit) :] if before is not None and after is None else names[: int(limit)]
        return AnthropicModels(
            data=[self._anthropic_model(name) for name in page],
            has_more=len(page) < len(names),
            first_id=page[0] if page else None,
            last_id=page[-1] if page else None,
        )

    def _anthropic_model(self, name: str) -> AnthropicModel:
        served = self._service.model(name)
        created = datetime.fromtimestamp(served.created, UTC)
        return AnthropicModel(
            id=name,
            display_name=name,
            created_at=created.isoformat().replace("+00:00", "Z"),
            max_input_tokens=served.text.context_tokens,
            max_tokens=served.text.context_tokens,
        )

    def _encoder(self, name: str, served: ServedModel, encoder: EncoderModel) -> Model:
        return Model(
            id=name,
            aliases=list(served.aliases),
            created=served.created,
            max_context_tokens=encoder.max_tokens,
            max_model_len=encoder.max_tokens,
            capabilities=["rerank", "score"] if encoder.scores else ["embeddings", "rerank", "score"],
            dimensions=None if encoder.scores else encoder.dimensions,
            asleep=self._is_asleep(self._service.name_of(name)),
        )

    def _model(self, name: str) -> Model:
        served = self._service.model(name)
        if served.encoder is not None:
            return self._encoder(name, served, served.encoder)
        chat = served.chat
        capabilities: list[Capability] = ["completions", "embeddings"]
        if chat.can_chat:
            capabilities.append("chat")
        thinking = chat.thinking
        return Model(
            id=name,
            aliases=list(served.aliases),
            created=served.created,
            max_context_tokens=chat.context_tokens,
            max_model_len=chat.context_tokens,
            capabilities=capabilities,
            sampling=chat.sampling,
            thinking=None
            if thinking is None
            else Thinking(switch=thinking.has_switch, short_tokens=thinking.short_tokens, default=thinking.default),
            asleep=self._is_asleep(self._service.name_of(name)),
        )
