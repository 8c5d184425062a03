"""Compressed bodies: gzip is decompressed, never into more memory than the limit allows."""

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import httpx2
import pytest

from app.interface.request.body import decompressed
from app.interface.request.errors import ApiError
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client, never

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
RAW = json.dumps(CHAT).encode()
LIMIT = 1 << 20


async def sent(content: bytes, coding: str, **settings: Any) -> httpx2.Response:
    generate = settings.pop("generate", never)
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    async with http_client(http_app(generate, **settings)) as client:
        return await client.post("/v1/chat/completions", content=content, headers=headers)


@pytest.mark.parametrize(
    ("coding", "content"),
    [("gzip", gzip.compress(RAW)), ("GZIP", gzip.compress(RAW)), ("x-gzip", gzip.compress(RAW)), ("identity", RAW)],
    ids=["gzip", "large letters", "x-gzip", "identity"],
)
async def test_a_compressed_body_is_read(coding: str, content: bytes) -> None:
    response = await sent(content, coding, generate=FakeWorker(lambda _: deltas([1])).generate)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip", "nonsense"])
async def test_another_coding_is_refused(coding: str) -> None:
    response = await sent(RAW, coding)
    assert (response.status_code, response.headers["accept-encoding"]) == (415, "gzip")
    assert "gzip" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [b"", RAW, gzip.compress(RAW)[:-4], gzip.compress(RAW)[:20], gzip.compress(RAW) + b"more", zlib.compress(RAW)],
    ids=["empty", "plain", "no end", "cut", "more", "zlib"],
)
async def test_what_is_no_whole_gzip_stream_is_refused(content: bytes) -> None:
    response = await sent(content, "gzip")
    assert response.status_code == 400
    assert "gzip" in response.json()["error"]["message"]


async def test_a_body_that_becomes_too_large_is_refused() -> None:
    large = json.dumps(CHAT | {"user": "x" * 2 * LIMIT}).encode()
    response = await sent(gzip.compress(large), "gzip")
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert (await sent(b"\0" * 2 * LIMIT, "gzip")).status_code == 413


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = gzip.compress(bytes(100 * LIMIT))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            decompressed(bomb, LIMIT)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert most_bytes < 4 * LIMIT


def test_a_body_of_just_the_limit_is_read() -> None:
    assert decompressed(gzip.compress(bytes(LIMIT)), LIMIT) == bytes(LIMIT)
    with pytest.raises(ApiError):
        decompressed(gzip.compress(bytes(LIMIT + 1)), LIMIT)
