"""Messages that several requests share: nothing is lost, repeated or out of order, whichever stream ends when."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from random import Random

import pytest

from app.engine.engine import Engine
from app.engine.model_runner import Batch
from app.engine.stream import MAX_RESENT_TOKENS, AsyncEngine, _Mailbox, _Reader
from app.messages.bundle import Assembler, Bundle, Part
from app.messages.failures import EngineError, EngineStoppedError
from app.messages.outputs import TokenDelta
from tests.engine.test_engine import TIMEOUT_S, Gate, make_request
from tests.fakes import FakeRunner
from tests.streams import with_the_loop


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner(kv_pages=2048, max_sequences=32, max_step_tokens=256, max_context_tokens=8192)


@pytest.fixture
async def streams(runner: FakeRunner) -> AsyncIterator[AsyncEngine]:
    engine = Engine(runner)
    engine.start()
    yield AsyncEngine(engine)
    await asyncio.to_thread(engine.stop)
    assert engine.statistics().pages_used == 0


class Reader:
    """Reads several streams at once, as an ingress does; a stream that it closes loses the messages on their way."""

    def __init__(self, streams: AsyncEngine, name: str, on_the_way: int) -> None:
        self.streams = streams
        self.name = name
        self.on_the_way = on_the_way
        self.assemblers: dict[str, Assembler] = {}
        self.outputs: dict[str, list[int]] = {}
        self.messages = 0
        self.delivered_for_others = 0

    async def read(self, name: str, new_tokens: int, *, give_up_after: int | None = None) -> None:
        self.assemblers[name] = Assembler()
        self.outputs[name] = []
        stream = self.streams.stream(make_request(name, 5, new_tokens), reader=self.name)
        on_the_way: list[Bundle] = []
        taken = 0
        try:
            async for bundle in stream:
                self.messages += 1
                taken += 1
                on_the_way.append(bundle)
                if len(on_the_way) > self.on_the_way:
                    self.arrive(on_the_way.pop(0), name)
                if taken == give_up_after:
                    del on_the_way[:]
                    return
            for bundle in on_the_way:
                self.arrive(bundle, name)
        finally:
            await stream.aclose()

    def arrive(self, bundle: Bundle, stream: str) -> None:
        for part in bundle:
            self.delivered_for_others += part.request_id != stream
            assembler = self.assemblers[part.request_id]
            assembler.put(part)
            while (delta := assembler.take()) is not None:
                self.outputs[part.request_id] += delta.token_ids


@pytest.mark.parametrize("on_the_way", [0, 3])
async def test_streams_of_one_reader_share_messages(streams: AsyncEngine, runner: FakeRunner, on_the_way: int) -> None:
    reader = Reader(streams, "ingress", on_the_way)
    runner.before_step = with_the_loop()
    await asyncio.gather(*(reader.read(f"{n}", 60 + n) for n in range(12)))
    for n in range(12):
        assert tuple(reader.outputs[f"{n}"]) == runner.expected_tokens(make_request(f"{n}", 5, 60 + n))
    assert reader.delivered_for_others > 12 * 30
    assert reader.messages < 12 * 60 / 3


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_lost_when_streams_are_given_up(streams: AsyncEngine, runner: FakeRunner, seed: int) -> None:
    random = Random(seed)
    reader = Reader(streams, "ingress", on_the_way=random.randrange(5))
    given_up = {n: random.randrange(1, 25) for n in range(16) if random.random() < 0.5}
    lengths = [random.randrange(1, 120) for _ in range(16)]
    await asyncio.gather(*(reader.read(f"{n}", lengths[n], give_up_after=given_up.get(n)) for n in range(16)))
    for n in range(16):
        expected = runner.expected_tokens(make_request(f"{n}", 5, lengths[n]))
        output = tuple(reader.outputs[f"{n}"])
        assert output == expected[: len(output)]
        if n not in given_up:
            assert output == expected


async def test_what_a_lost_delivery_stream_had_on_its_way_is_resent_at_once() -> None:
    """Not only when the outputs end."""
    gate = Gate()
    runner = FakeRunner(kv_pages=256, max_context_tokens=512, before_step=gate)
    engine = Engine(runner)
    engine.start()
    reader = Reader(AsyncEngine(engine), "ingress", on_the_way=2)
    tasks = [asyncio.ensure_future(reader.read("delivery", 200, give_up_after=12))]
    await asyncio.to_thread(gate.wait)
    await asyncio.to_thread(gate.let_run, 2)
    others = Reader(reader.streams, "ingress", on_the_way=0)
    others.assemblers, others.outputs = reader.assemblers, reader.outputs
    tasks += [asyncio.ensure_future(others.read(f"{n}", 200)) for n in range(2)]
    try:
        while not tasks[0].done():
            await asyncio.to_thread(gate.let_run, 1)
            await asyncio.sleep(0.002)
        assert reader.delivered_for_others
        received = [len(reader.outputs[f"{n}"]) for n in range(2)]
        await asyncio.to_thread(gate.let_run, 5)
        async with asyncio.timeout(60):
            while any(len(reader.outputs[f"{n}"]) < received[n] + 5 for n in range(2)):
                await asyncio.sleep(0.002)
    finally:
        gate.open()
    await asyncio.gather(*tasks)
    for n in range(2):
        assert tuple(reader.outputs[f"{n}"]) == runner.expected_tokens(make_request(f"{n}", 5, 200))
    await asyncio.to_thread(engine.stop)


async def test_readers_never_see_each_others_tokens(streams: AsyncEngine) -> None:
    readers = [Reader(streams, f"ingress-{n}", 0) for n in range(3)]
    await asyncio.gather(*(reader.read(f"{reader.name} {n}", 40) for reader in readers for n in range(4)))
    for reader in readers:  # a part of another's request would have been a KeyError
        assert set(reader.outputs) == {f"{reader.name} {n}" for n in range(4)}
        assert reader.delivered_for_others


def keep_pace(runner: FakeRunner) -> None:
    """The engine waits for the event loop every 25 steps: on a busy machine it would run far ahead of its readers."""
    loop, steps = asyncio.get_running_loop(), itertools.count()

    def before_step(_: Batch) -> None:
        if next(steps) % 25 == 0:
            caught_up = threading.Event()
            loop.call_soon_threadsafe(caught_up.set)
            assert caught_up.wait(TIMEOUT_S)

    runner.before_step = before_step


async def test_what_others_deliver_is_resent_now_and_then(streams: AsyncEngine, runner: FakeRunner) -> None:
    """What is kept in case the delivery stream is lost has a bound."""
    keep_pace(runner)
    length = 3 * MAX_RESENT_TOKENS
    own: list[int] = []

    async def watch() -> None:
        stream = streams.stream(make_request("delivered", 5, length), reader="ingress")
        own.extend([len(part.delta.token_ids) async for bundle in stream for part in bundle])

    async def deliver() -> None:
        async for _ in streams.stream(make_request("delivers", 5, length + 2000), reader="ingress"):
            pass

    delivering = asyncio.ensure_future(deliver())
    await asyncio.sleep(0.05)
    await asyncio.gather(watch(), delivering)
    assert sum(own) == length
    assert max(own) < MAX_RESENT_TOKENS + 200
    assert len(own) < length / 100


async def test_messages_of_a_lone_request_have_one_part(streams: AsyncEngine) -> None:
    async for bundle in streams.stream(make_request("a", 5, 50), reader="ingress"):
        assert [part.request_id for part in bundle] == ["a"]


async def test_nothing_is_kept_of_a_reader_without_streams(streams: AsyncEngine) -> None:
    async for _ in streams.stream(make_request("a", 5, 5), reader="ingress"):
        pass
    assert not streams._readers


async def settled() -> None:
    """What the event loop has is read, and what follows from it."""
    for _ in range(20):
        await asyncio.sleep(0)


class Mailboxes:
    """Mailboxes of one reader, each read as its stream does it, and what was read of all of them."""

    def __init__(self, names: str) -> None:
        reader = _Reader()
        self.by_name = {name: _Mailbox(name, reader) for name in names}
        self.parts: list[tuple[str, Part]] = []
        self.errors: dict[str, EngineError] = {}
        self.tasks = {name: asyncio.ensure_future(self._read(name)) for name in names}

    async def _read(self, name: str) -> None:
        mailbox = self.by_name[name]
        try:
            while not mailbox.ended:
                self.parts += [(name, part) for part in await mailbox.take()]
        except EngineError as error:
            self.errors[name] = error
        finally:
            mailbox.close()

    async def step(self, token: int, names: str) -> None:
        await settled()
        for name in names:
            self.by_name[name].put(TokenDelta((token,)))
        await settled()

    def own(self, name: str) -> list[int]:
        return [token for stream, part in self.parts for token in part.delta.token_ids if name == stream == part[0]]


async def test_no_token_waits_for_a_later_step() -> None:
    """Two streams find at the same step that none delivers: one does from then on, and sends the other's tokens too."""
    boxes = Mailboxes("abc")
    await boxes.step(1, "cab")
    boxes.tasks["c"].cancel()
    await boxes.step(2, "ab")
    assert sorted(part[:2] for _, part in boxes.parts if part.delta.token_ids == (2,)) == [("a", 1), ("b", 1)]
    for task in boxes.tasks.values():
        task.cancel()


async def test_an_error_comes_after_the_tokens_before_it() -> None:
    """Also after those that another stream delivered, which may be late."""
    boxes = Mailboxes("ab")
    for token in range(5):
        await boxes.step(token, "ab")
    assert boxes.own("b") == [0]
    boxes.by_name["b"].put(EngineStoppedError("it has stopped"))
    await settled()
    assert boxes.own("b") == [0, 1, 2, 3, 4]
    assert set(boxes.errors) == {"b"}
    boxes.tasks["a"].cancel()


async def test_an_unread_delivery_stream_is_replaced(streams: AsyncEngine, runner: FakeRunner) -> None:
    """The others then get a message for nearly every token; if they waited to their ends they would get 4."""
    runner.before_step = with_the_loop()
    unread = streams.stream(make_request("unread", 5, 3000), reader="ingress")
    await anext(unread)
    reader = Reader(streams, "ingress", 0)
    reader.assemblers["unread"], reader.outputs["unread"] = Assembler(), []
    for name in ("a", "b"):
        await reader.read(name, 300)
    assert reader.messages > 2 * 100
    await unread.aclose()


async def test_a_closed_request_sends_nothing() -> None:
    """Tokens that the engine made meanwhile would go to another request, if the id were used again."""
    boxes = Mailboxes("ab")
    await boxes.step(1, "ab")
    boxes.tasks["b"].cancel()
    await boxes.step(2, "ab")
    await boxes.step(3, "ab")
    assert [part[:2] for _, part in boxes.parts] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    boxes.tasks["a"].cancel()


async def test_one_step_is_one_message(runner: FakeRunner) -> None:
    gate = Gate()
    gate.engine = engine = Engine(FakeRunner(before_step=gate))
    engine.start()
    streams = AsyncEngine(engine)
    reader = Reader(streams, "ingress", 0)
    tasks = [asyncio.ensure_future(reader.read(f"{n}", 30)) for n in range(3)]
    await asyncio.to_thread(gate.wait)
    await asyncio.to_thread(gate.let_run, 8)
    await settled()
    assert min(len(output) for output in reader.outputs.values()) >= 5
    before = reader.messages
    for number in range(1, 11):
        await asyncio.to_thread(gate.let_run, 1)
        await settled()
        assert reader.messages == before + number
    gate.open()
    await asyncio.gather(*tasks)
    await asyncio.to_thread(engine.stop)
