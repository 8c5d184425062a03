"""Compressed bodies: gzip and zstd are decompressed, never into more memory than the limit allows."""

import gzip
import json
import sys
import tracemalloc
import zlib
from importlib import import_module
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
zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
COMPRESS: dict[str, Any] = {"gzip": gzip.compress, "zstd": zstd.compress}
CODINGS = pytest.mark.parametrize("coding", COMPRESS)


async def sent(content: bytes, coding: str, **settings: Any) -> httpx2.Response:
    generate = settings.pop("generate", never)
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    async with http_client(http_app(generate, **settings)) as client:
        return await client.post("/v1/chat/completions", content=content, headers=headers)


@pytest.mark.parametrize(
    ("coding", "content"),
    [
        ("gzip", gzip.compress(RAW)),
        ("GZIP", gzip.compress(RAW)),
        ("x-gzip", gzip.compress(RAW)),
        ("zstd", zstd.compress(RAW)),
        ("identity", RAW),
    ],
    ids=["gzip", "large letters", "x-gzip", "zstd", "identity"],
)
async def test_a_compressed_body_is_read(coding: str, content: bytes) -> None:
    response = await sent(content, coding, generate=FakeWorker(lambda _: deltas([1])).generate)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "zstd, gzip", "nonsense"])
async def test_another_coding_is_refused(coding: str) -> None:
    response = await sent(RAW, coding)
    assert (response.status_code, response.headers["accept-encoding"]) == (415, "gzip, zstd")
    assert "gzip" in response.json()["error"]["message"]


@CODINGS
@pytest.mark.parametrize("kind", ["empty", "plain", "no end", "cut", "more", "another"])
async def test_what_is_no_whole_stream_is_refused(coding: str, kind: str) -> None:
    whole = COMPRESS[coding](RAW)
    content = {
        "empty": b"",
        "plain": RAW,
        "no end": whole[:-4],
        "cut": whole[:20],
        "more": whole + b"more",
        "another": zlib.compress(RAW),
    }[kind]
    response = await sent(content, coding)
    assert response.status_code == 400
    assert coding in response.json()["error"]["message"]


@CODINGS
async def test_a_body_that_becomes_too_large_is_refused(coding: str) -> None:
    large = json.dumps(CHAT | {"user": "x" * 2 * LIMIT}).encode()
    response = await sent(COMPRESS[coding](large), coding)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert (await sent(b"\0" * 2 * LIMIT, coding)).status_code == 413


@CODINGS
def test_a_bomb_takes_no_more_memory_than_the_limit(coding: str) -> None:
    bomb = COMPRESS[coding](bytes(100 * LIMIT))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            decompressed(bomb, LIMIT, coding)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert most_bytes < 4 * LIMIT


def test_a_window_beyond_what_http_allows_is_refused() -> None:
    wide = zstd.compress(bytes(20 * LIMIT), options={zstd.CompressionParameter.window_log: 24})
    with pytest.raises(ApiError) as refused:
        decompressed(wide, 100 * LIMIT, "zstd")
    assert refused.value.status == 400


@CODINGS
def test_a_body_of_just_the_limit_is_read(coding: str) -> None:
    assert decompressed(COMPRESS[coding](bytes(LIMIT)), LIMIT, coding) == bytes(LIMIT)
    with pytest.raises(ApiError):
        decompressed(COMPRESS[coding](bytes(LIMIT + 1)), LIMIT, coding)
