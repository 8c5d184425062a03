"""A client that disconnects frees its place and its pages, whatever the state of its request."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.service.running import RunningService, wait_until

PLACES = 8  # two workers, two running and two waiting each


@pytest.fixture
async def http(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    service.wait_until_idle()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        yield client


class Reader:
    """A streaming client in the background."""

    def __init__(
        self, http: httpx.AsyncClient, body: dict[str, Any], *, leaves_early: bool = False, insists: bool = False
    ) -> None:
        """leaves_early: at the first news of its prompt. insists: it asks again when it is refused a place."""
        self._leaves_early = leaves_early
        self._insists = insists
        self.status = 0
        self.retry_after: str | None = None
        self.texts: list[str] = []
        self.news: list[dict[str, Any]] = []
        """What came of the prompt before the first text."""
        self.task = asyncio.create_task(self._read(http, body))

    async def _read(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        await self._read_once(http, body)
        while self._insists and self.status == 429:  # a worker that a busy machine holds up counts as silent
            await asyncio.sleep(0.2)
            await self._read_once(http, body)

    async def _read_once(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            self.status = response.status_code
            self.retry_after = response.headers.get("retry-after")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "prompt_progress" in chunk:
                        assert not self.texts
                        self.news.append(chunk["prompt_progress"])
                        if self._leaves_early:
                            return
                    else:
                        self.texts.append(chunk["choices"][0]["text"])

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def wait_for(service: RunningService, **sums: int) -> None:
    """Until the workers' sums are these."""

    def reached() -> bool:
        rows = service.alive()
        return all(sum(row[name] for row in rows) == value for name, value in sums.items())

    await asyncio.to_thread(wait_until, reached, str(sums))


async def test_leaving_while_it_decodes(service: RunningService, http: httpx.AsyncClient) -> None:
    reader = Reader(http, service.endless())
    await wait_for(service, running=1)
    while len(reader.texts) < 5:
        await asyncio.sleep(0.05)
    await reader.leave()
    await asyncio.to_thread(service.wait_until_idle)


async def test_leaving_while_the_prompt_is_read(service: RunningService, http: httpx.AsyncClient) -> None:
    body = service.endless("All work and no play makes Jack a dull boy. " * 600, max_tokens=8)
    reader = Reader(http, body | {"return_progress": True}, leaves_early=True)
    await reader.task
    assert not reader.texts
    assert reader.news[-1]["processed"] < reader.news[-1]["total"]
    await asyncio.to_thread(service.wait_until_idle)


async def test_who_waits_and_is_read_is_told_so(service: RunningService, http: httpx.AsyncClient) -> None:
    readers = [Reader(http, service.endless(), insists=True) for _ in range(PLACES - 1)]
    await wait_for(service, running=4, waiting=3)
    # No other test's: pages in the prefix cache are not read again.
    long = service.endless("The early bird catches the worm, and the second mouse the cheese. " * 400, max_tokens=8)
    asking = Reader(http, long | {"return_progress": True})
    while not asking.news:
        await asyncio.sleep(0.05)
    for reader in readers:
        await reader.leave()
    await asking.task
    first, *others = asking.news
    assert (first["queued_ahead"], first["processed"], first["time_ms"]) == (1, 0, 0)
    reading = [news for news in others if news["queued_ahead"] is None]
    steps = [news["processed"] for news in reading]
    assert steps == sorted(steps)
    assert len(set(steps)) > 1  # there is news each quarter of a second at most
    assert steps[-1] == reading[-1]["total"] > 4000
    assert reading[-1]["time_ms"] > 0
    assert "".join(asking.texts)
    await asyncio.to_thread(service.wait_until_idle)


async def test_leaving_the_queue(service: RunningService, http: httpx.AsyncClient) -> None:
    readers = [Reader(http, service.endless(), insists=True) for _ in range(PLACES)]
    await wait_for(service, running=4, waiting=4)
    while sum(bool(reader.texts) for reader in readers) < 4:
        await asyncio.sleep(0.05)
    waiting = next(reader for reader in readers if not reader.texts)
    await waiting.leave()
    await wait_for(service, running=4, waiting=3, queue_length=PLACES - 1)
    for reader in readers:
        await reader.leave()
    await asyncio.to_thread(service.wait_until_idle)


async def test_a_full_service_says_when_to_retry(service: RunningService, http: httpx.AsyncClient) -> None:
    readers = [Reader(http, service.endless(), insists=True) for _ in range(PLACES)]
    await wait_for(service, running=4, waiting=4)
    refused = await http.post("/v1/completions", json=service.endless() | {"stream": False})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "Try again later" in refused.json()["error"]["message"]
    streamed = Reader(http, service.endless())
    await asyncio.wait_for(streamed.task, 60)
    assert (streamed.status, streamed.retry_after) == (429, refused.headers["retry-after"])
    await readers[0].leave()
    await wait_for(service, queue_length=PLACES - 1)
    late = Reader(http, service.endless())
    await wait_for(service, queue_length=PLACES)
    assert late.status in {0, 200}
    for reader in [*readers, late]:
        await reader.leave()
    await asyncio.to_thread(service.wait_until_idle)
