"""Reads a request's body up to a size limit, after checking its type.

It knows no route, and does not parse the body.
"""

import sys
import zlib
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

from fastapi import Request

from app.interface.request import errors

_CODINGS: Final = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}
_WITH_GZIP_HEAD: Final = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW_LOG: Final = 23
"""8 MiB, which is the most that HTTP allows (RFC 9659): a decompressor holds a window's bytes."""

InThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]


async def read_body(request: Request, limit_bytes: int, in_thread: InThread | None = None) -> bytes:
    """Reads a JSON body of limited size, also after decompression (gzip, zstd).

    in_thread: runs slow decompression off the event loop. Raises ApiError (400, 413, 415).
    """
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if content_type.strip().lower() != "application/json":
        # Browsers send other types across sites to a local address without a preflight.
        raise errors.wrong_content_type()
    named = request.headers.get("content-encoding", "").strip().lower()
    coding = _CODINGS.get(named)
    if coding is None and named not in ("", "identity"):
        raise errors.wrong_content_encoding()
    body = await _received(request, limit_bytes)
    if coding is None:
        return body
    if in_thread is None:
        return decompressed(body, limit_bytes, coding)
    return await in_thread(lambda: decompressed(body, limit_bytes, coding))


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


def decompressed(body: bytes, limit_bytes: int, coding: str = "gzip") -> bytes:
    """Decompresses gzip or zstd, producing at most a byte over the limit. Raises ApiError (400, 413)."""
    stream, broken = _decompressor(coding)
    try:
        content: bytes = stream.decompress(body, limit_bytes + 1)
    except broken:
        raise errors.not_compressed(coding) from None
    if len(content) > limit_bytes:
        raise errors.body_too_large(limit_bytes)
    if not stream.eof or stream.unused_data:
        raise errors.not_compressed(coding)
    return content


def _decompressor(coding: str) -> tuple[Any, type[Exception]]:
    """Returns a decompressor of one stream, and what it raises for bytes that are none."""
    if coding == "gzip":
        return zlib.decompressobj(_WITH_GZIP_HEAD), zlib.error
    # Few clients send it: the others' ingresses need not load it.
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return zstd.ZstdDecompressor(options=options), zstd.ZstdError
