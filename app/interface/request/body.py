"""Reads a request's body up to a size limit, after checking its type.

It knows no route, and does not parse the body.
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
    """Reads a JSON body of limited size, also after decompression (gzip).

    in_thread: runs slow decompression off the event loop. Raises ApiError (400, 413, 415).
    """
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        # Browsers send other types across sites to a local address without a preflight.
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
    """Decompresses gzip, producing at most a byte over the limit. Raises ApiError (400, 413)."""
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
