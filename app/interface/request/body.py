"""A request's body: whether it says what it is, and its bytes, which are never more than the limit.

It knows no route, and does not parse what it reads.
"""

import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request

from app.interface.request import errors

_GZIP: Final = ("gzip", "x-gzip")
_WITH_GZIP_HEAD: Final = 16 + zlib.MAX_WBITS

InThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]


async def read_body(request: Request, limit_bytes: int, in_thread: InThread | None = None) -> bytes:
    """The body, if it says that it is JSON and is not too large, also when it is decompressed (gzip).

    in_thread: runs what takes long beside the event loop. Raises ApiError (400, 413, 415).
    """
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        # A browser sends other types across sites to a local address without asking that address first.
        raise errors.wrong_content_type()
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity", *_GZIP):
        raise errors.wrong_content_encoding()
    body = await _received(request, limit_bytes)
    if coding not in _GZIP:
        return body
    if in_thread is None:
        return decompressed(body, limit_bytes)
    return await in_thread(lambda: decompressed(body, limit_bytes))


async def _received(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit_bytes):
        raise errors.body_too_large(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise errors.body_too_large(limit_bytes)
    return bytes(body)


def decompressed(body: bytes, limit_bytes: int) -> bytes:
    """What gzip made smaller. Never makes more than the limit and a byte. Raises ApiError (400, 413)."""
    stream = zlib.decompressobj(_WITH_GZIP_HEAD)
    try:
        content = stream.decompress(body, limit_bytes + 1)
    except zlib.error:
        raise errors.not_gzip() from None
    if len(content) > limit_bytes:
        raise errors.body_too_large(limit_bytes)
    if not stream.eof or stream.unused_data:
        raise errors.not_gzip()
    return content
