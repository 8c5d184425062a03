"""A direct line beside the streams: it saves messages, and nothing is lost when it is slow, late or breaks."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from app.engine.engine import Engine
from app.engine.stream import MAX_RESENT_TOKENS, MAX_WAITING_TOKENS, AsyncEngine
from app.messages.bundle import Assembler, Bundle
from app.messages.outputs import TokenDelta
from tests.engine.test_engine import Gate, make_request
from tests.engine.test_shared_messages import Reader, keep_pace, runner, streams
from tests.fakes import FakeRunner
from tests.streams import with_the_loop

__all__ = ["runner", "streams"]  # fixtures


class FakeLine:
    """Delivers at once, or when `arrive` is called; what has not arrived when it breaks is lost."""

    def __init__(self, reader: Reader, *, late: bool = False) -> None:
        self.writable = True
        self.on_writable: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self.messages = 0
        self.is_lost = False
        self._reader = reader
        self._late = late
        self._on_the_way: list[Bundle] = []

    def send(self, bundle: Bundle) -> None:
        assert self.writable
        assert not self.is_lost
        assert all(part.delta == TokenDelta(part.delta.token_ids) for part in bundle)
        self.messages += 1
        self._on_the_way.append(bundle)
        if not self._late:
            self.arrive()

    def arrive(self) -> None:
        for bundle in self._on_the_way:
            self._reader.arrive(tuple(part for part in bundle if part.request_id in self._reader.outputs), "")
        self._on_the_way.clear()

    def close(self) -> None:
        self.is_lost = True
        self._on_the_way.clear()
        self.on_lost()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def let_one_token_come(reader: Reader, gate: Gate, name: str) -> None:
    """On the output's own stream."""
    await asyncio.to_thread(gate.let_run, 1)
    await until(lambda: bool(reader.outputs[name]))


def assert_complete(reader: Reader, runner: FakeRunner, lengths: dict[str, int]) -> None:
    for name, length in lengths.items():
        assert tuple(reader.outputs[name]) == runner.expected_tokens(make_request(name, 5, length))


@pytest.mark.parametrize("late", [False, True])
async def test_with_a_line_streams_send_only_the_beginning_and_the_end(
    streams: AsyncEngine, runner: FakeRunner, late: bool
) -> None:
    runner.before_step = with_the_loop()
    reader = Reader(streams, "ingress", 0)
    line = FakeLine(reader, late=late)
    streams.attach("ingress", line)
    lengths = {f"{n}": 60 + n for n in range(12)}
    await asyncio.gather(*(reader.read(name, length) for name, length in lengths.items()))
    assert_complete(reader, runner, lengths)
    assert reader.messages <= 2 * 12
    assert line.messages <= 80  # one a step, not one a token


async def test_a_lone_request_has_a_line_too(streams: AsyncEngine, runner: FakeRunner) -> None:
    reader = Reader(streams, "ingress", 0)
    line = FakeLine(reader)
    streams.attach("ingress", line)
    for name in ("a", "b"):  # the second when nothing of the first is left
        await reader.read(name, 50)
    assert_complete(reader, runner, {"a": 50, "b": 50})
    assert reader.messages <= 2 * 2
    assert not streams._readers
    assert streams.has_line("ingress")


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_lost_when_it_comes_late_or_breaks(
    streams: AsyncEngine, runner: FakeRunner, seed: int
) -> None:
    random = Random(seed)
    reader = Reader(streams, "ingress", random.randrange(3))
    lengths = {f"{n}": random.randrange(1, 150) for n in range(12)}
    given_up = {name: random.randrange(1, 4) for name in lengths if random.random() < 0.25}
    reading = asyncio.gather(
        *(reader.read(name, length, give_up_after=given_up.get(name)) for name, length in lengths.items())
    )
    while not reading.done():
        line = FakeLine(reader, late=random.random() < 0.5)
        streams.attach("ingress", line)
        await asyncio.sleep(random.random() * 0.01)
        line.writable = line.is_lost
        await asyncio.sleep(random.random() * 0.005)
        line.writable = not line.is_lost
        line.on_writable()
        if random.random() < 0.5:
            line.arrive()
        if not line.is_lost:
            line.close()
    await reading
    assert_complete(reader, runner, {name: lengths[name] for name in lengths if name not in given_up})
    assert not streams.has_line("ingress")


async def test_what_a_broken_line_had_on_its_way_is_resent_at_once() -> None:
    gate = Gate()
    runner = FakeRunner(kv_pages=256, max_context_tokens=512, before_step=gate)
    engine = Engine(runner)
    engine.start()
    reader = Reader(AsyncEngine(engine), "ingress", 0)
    line = FakeLine(reader, late=True)
    reader.streams.attach("ingress", line)
    task = asyncio.ensure_future(reader.read("a", 200))
    await asyncio.to_thread(gate.wait)
    try:
        await let_one_token_come(reader, gate, "a")
        await asyncio.to_thread(gate.let_run, 19)
        await until(lambda: bool(line.messages))
        assert len(reader.outputs["a"]) == 1
        line.close()
        await until(lambda: len(reader.outputs["a"]) >= 19)
    finally:
        gate.open()
    await task
    assert_complete(reader, runner, {"a": 200})
    await asyncio.to_thread(engine.stop)


async def test_a_line_that_accepts_no_more_is_closed(streams: AsyncEngine, runner: FakeRunner) -> None:
    reader = Reader(streams, "ingress", 0)
    line = FakeLine(reader)
    streams.attach("ingress", line)
    line.writable = False
    await reader.read("a", MAX_WAITING_TOKENS + 200)
    assert_complete(reader, runner, {"a": MAX_WAITING_TOKENS + 200})
    assert line.is_lost
    assert not line.messages
    assert not streams.has_line("ingress")


async def test_a_line_that_accepts_more_again_is_kept(runner: FakeRunner) -> None:
    gate = Gate()
    engine = Engine(FakeRunner(kv_pages=256, max_context_tokens=512, before_step=gate))
    engine.start()
    reader = Reader(AsyncEngine(engine), "ingress", 0)
    line = FakeLine(reader)
    reader.streams.attach("ingress", line)
    task = asyncio.ensure_future(reader.read("a", 100))
    await asyncio.to_thread(gate.wait)
    try:
        await let_one_token_come(reader, gate, "a")
        line.writable = False
        await asyncio.to_thread(gate.let_run, MAX_WAITING_TOKENS // 2)
        await asyncio.sleep(0.02)
        before, messages = len(reader.outputs["a"]), reader.messages
        line.writable = True
        line.on_writable()
        await until(lambda: len(reader.outputs["a"]) >= before + MAX_WAITING_TOKENS // 2)
        assert not line.is_lost
        assert reader.messages == messages
    finally:
        gate.open()
    await task
    await asyncio.to_thread(engine.stop)


async def test_a_long_output_is_resent_now_and_then(streams: AsyncEngine, runner: FakeRunner) -> None:
    """What is kept in case the line breaks has a bound."""
    keep_pace(runner)
    length = 3 * MAX_RESENT_TOKENS
    reader = Reader(streams, "ingress", 0)
    reader.assemblers["a"], reader.outputs["a"] = Assembler(), []
    streams.attach("ingress", FakeLine(reader))
    own: list[int] = []
    async for bundle in streams.stream(make_request("a", 5, length), reader="ingress"):
        own += [len(part.delta.token_ids) for part in bundle]
        reader.arrive(bundle, "a")
    assert sum(own) == length
    assert max(own) < MAX_RESENT_TOKENS + 200
    assert len(own) < 10
    assert_complete(reader, runner, {"a": length})


async def test_each_reader_has_its_own_line(streams: AsyncEngine) -> None:
    readers = [Reader(streams, f"ingress-{n}", 0) for n in range(2)]
    lines = [FakeLine(reader) for reader in readers]
    streams.attach("ingress-0", lines[0])
    await asyncio.gather(*(reader.read(f"{reader.name} {n}", 40) for reader in readers for n in range(3)))
    assert lines[0].messages
    assert readers[1].delivered_for_others  # by its streams, as it has no line
    assert not lines[1].messages
