"""What every route works with: the models that are served, the settings, and how a body becomes a request.

It knows neither paths nor what a request asks for.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from app import answers, errors
from app.chat import ChatModel
from app.errors import ApiError
from app.generation import Generate
from app.http_guard import read_body
from app.planning import Limits
from app.validation import parse
from app.worker_table import WorkerRow

Body = TypeVar("Body", bound=BaseModel)
Planned = TypeVar("Planned")

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

    def model(self, name: str | None) -> ServedModel:
        """The model of that name; None: the first. Raises ApiError (404, or 503 where there is none at all)."""
        if name is None:
            first = next(iter(self.models), None)
            if first is None:
                raise errors.unavailable(self.settings.retry_after_s, "No model is served yet. Try again later.")
            name = first
        served = self.models.get(name)
        if served is None:
            raise errors.no_such_model(name)
        return served


class Reception:
    """Takes bodies in: reads, validates and plans them, long ones off the event loop."""

    def __init__(self, service: Service) -> None:
        self.service = service
        # Two: tokenizing leaves Python's lock, but the cores belong to the workers.
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")

    async def take(
        self, request: Request, body_type: type[Body], plan: Callable[[Body], Planned], *, most_bytes: int | None = None
    ) -> tuple[Body, Planned]:
        """The request and what `plan` made of it, maybe in a thread. Raises ApiError (4xx).

        most_bytes: of this route's bodies, if that is less than what the service allows.
        """
        limit_bytes = self.service.settings.max_body_bytes
        raw = await read_body(request, limit_bytes if most_bytes is None else min(limit_bytes, most_bytes))

        def prepare() -> tuple[Body, Planned]:
            body = parse(body_type, raw)
            return body, plan(body)

        if len(raw) < LONG_BODY_BYTES:
            return prepare()
        return await self.in_thread(prepare)

    async def in_thread(self, work: Callable[[], Planned]) -> Planned:
        """What would keep other streams waiting, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def as_api_error(self, request_id: str) -> Callable[[Exception], ApiError]:
        """What a failure of that request is to its client."""
        return lambda error: answers.as_api_error(error, request_id, self.service.settings.retry_after_s)
