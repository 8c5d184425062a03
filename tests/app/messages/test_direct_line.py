"""Real sockets between two ends in one process."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from app.messages.bundle import Bundle, Part
from app.messages.direct_line import Line, Lines, connect
from app.messages.outputs import TokenDelta


class End:
    """An ingress' end, and the parts that arrived."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: list[Part] = []
        self.lines = Lines(path, self._put)

    def _put(self, bundle: Bundle) -> None:
        self.parts += bundle

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.parts) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
async def end(tmp_path: Path) -> AsyncIterator[End]:
    end = End(tmp_path / "lines" / "a1b2")
    await end.lines.open()
    yield end
    end.lines.close()
    await asyncio.sleep(0.01)


def part(name: str, start: int, *tokens: int) -> Part:
    return Part(name, start, TokenDelta(tokens))


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Line]:
    line = await connect(path)
    assert line is not None
    yield line
    lost = asyncio.Event()
    if line.writable:
        line.on_lost = lost.set
        line.close()
        await lost.wait()


async def test_bundles_arrive_in_order(end: End) -> None:
    sent = [part(f"request-{n % 7}", n, *range(n % 50)) for n in range(5000)]
    async with connected(end.path) as line:
        for n in range(0, len(sent), 10):
            line.send(tuple(sent[n : n + 10]))
        await end.until(len(sent))
    assert end.parts == sent


async def test_two_workers_at_one_ingress(end: End) -> None:
    async with connected(end.path) as one, connected(end.path) as other:
        one.send((part("0", 3, 4, 5),))
        other.send((part("1", 3, 4, 5),))
        await end.until(2)
    assert sorted(end.parts) == [part("0", 3, 4, 5), part("1", 3, 4, 5)]


async def test_a_slow_reader_makes_the_line_unwritable_until_it_reads_again(end: End) -> None:
    async with connected(end.path) as line:
        writable_again = asyncio.Event()
        line.on_writable = writable_again.set
        count = 0
        while line.writable:
            line.send((part("a", count, *range(1000)),))
            count += 1
        async with asyncio.timeout(60):
            await writable_again.wait()
        assert line.writable
        await end.until(count)


async def test_an_ingress_that_ends_is_reported_as_lost(end: End) -> None:
    async with connected(end.path) as line:
        lost = asyncio.Event()
        line.on_lost = lost.set
        line.send((part("a", 0, 1),))
        await end.until(1)
        end.lines.close()
        async with asyncio.timeout(60):
            await lost.wait()
        assert not line.writable


async def test_there_is_no_line_without_a_listener(end: End, tmp_path: Path) -> None:
    assert await connect(tmp_path / "lines" / "other") is None  # an ingress on another machine
    end.lines.close()
    assert await connect(end.path) is None
    assert not end.path.exists()


async def test_a_path_that_is_too_long_means_no_line(tmp_path: Path) -> None:
    end = End(tmp_path / ("l" * 60) / ("a" * 60))
    await end.lines.open()
    assert await connect(end.path) is None


async def test_other_users_are_refused(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stat.S_IMODE(end.path.parent.stat().st_mode) == 0o700
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert await connect(end.path) is None  # the worker checks the ingress
    reader, writer = await asyncio.open_unix_connection(end.path)
    writer.write(b'[["a",0,[1]]]\n')
    with suppress(ConnectionError):
        assert await reader.read() == b""  # the ingress checks the worker
    writer.close()
    monkeypatch.undo()
    async with connected(end.path) as line:
        line.send((part("b", 0, 1),))
        await end.until(1)
    assert end.parts == [part("b", 0, 1)]
