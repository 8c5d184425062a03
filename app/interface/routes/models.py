"""`/v1/models`, `/v1/workers`, `/health`, `/livez` and `/readyz`: the served models and their workers."""

import dataclasses

from fastapi.responses import Response

from app.interface.generate.service import Service
from app.interface.http.guard import json_response
from app.interface.wire.models import Capability, Liveness, Model, ModelList, Readiness, Thinking


class ModelRoutes:
    """The routes of one service. None asks a worker or reads a body."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self) -> Response:
        """`GET /v1/models`."""
        return json_response(ModelList(data=[self._model(name) for name in self._service.models]).model_dump())

    async def model(self, name: str) -> Response:
        """`GET /v1/models/{id}`. Without an id, as some clients ask for the list, returns the list."""
        if not name:
            return await self.models()
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

    def _model(self, name: str) -> Model:
        served = self._service.model(name)
        chat = served.chat
        capabilities: list[Capability] = ["completions", "embeddings"]
        if chat.can_chat:
            capabilities.append("chat")
        thinking = chat.thinking
        return Model(
            id=name,
            created=served.created,
            max_context_tokens=chat.context_tokens,
            max_model_len=chat.context_tokens,
            capabilities=capabilities,
            sampling=chat.sampling,
            thinking=None
            if thinking is None
            else Thinking(switch=thinking.has_switch, short_tokens=thinking.short_tokens, default=thinking.default),
            asleep=self._is_asleep(name),
        )
