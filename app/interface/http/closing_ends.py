"""Streams for HTTP/1.0 clients, which do not know chunked encoding: the answer ends when the connection is closed.

uvicorn (0.54, with httptools) sends chunks to them all the same, and has no setting for it. Only this file depends on
uvicorn's internals; its test fails if a new version changes them. It knows nothing of what is sent.
"""

from typing import Any

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def end_by_closing() -> None:
    """Makes this process's HTTP servers send no chunks to HTTP/1.0 clients. Call it once."""
    send = RequestResponseCycle.send

    async def without_chunks(cycle: Any, message: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            _prepare(cycle, message)
        await send(cycle, message)

    setattr(RequestResponseCycle, "send", without_chunks)  # noqa: B010


def _prepare(cycle: Any, message: Message) -> None:
    if message["type"] == "http.response.start":
        names = {name.lower() for name, _ in message.get("headers", ())}
        cycle.ends_by_closing = b"content-length" not in names
        if cycle.ends_by_closing:
            cycle.chunked_encoding = cycle.keep_alive = False
    elif cycle.ends_by_closing:
        cycle.expected_content_length = len(message.get("body", b""))  # uvicorn checks that it gets exactly this much
