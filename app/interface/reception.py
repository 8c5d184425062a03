"""From the bytes of a request to a typed body and a plan, off the event loop where that takes long.

It knows neither paths nor what a request asks for.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from app.interface import errors
from app.interface.errors import ApiError
from app.interface.service import Service
from app.interface.wire.parse import parse


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body, if it says that it is JSON and is not too large. Raises ApiError (413, 415)."""
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        # Another site's page may send other types to a local address without the browser asking us first.
        raise errors.wrong_content_type()
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit_bytes):
        raise errors.body_too_large(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise errors.body_too_large(limit_bytes)
    return bytes(body)


Body = TypeVar("Body", bound=BaseModel)
Planned = TypeVar("Planned")

LONG_BODY_BYTES = 16 * 1024
"""Bodies from here on are parsed, rendered and tokenized in a thread, so that other streams go on."""


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
        return lambda error: errors.as_api_error(error, request_id, self.service.settings.retry_after_s)
