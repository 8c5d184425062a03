import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from app.engine.engine import Engine
from app.engine.stream import AsyncEngine
from app.messages.failures import EngineStoppedError, RequestTooLongError
from app.messages.outputs import TokenDelta
from tests.engine.test_engine import Gate, delivered, make_request
from tests.fakes import FakeRunner
from tests.streams import lone_stream


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def runner(gate: Gate) -> FakeRunner:
    return FakeRunner(before_step=gate)


@pytest.fixture
async def engine(runner: FakeRunner, gate: Gate) -> AsyncIterator[Engine]:
    gate.engine = engine = Engine(runner)
    engine.start()
    yield engine
    gate.open()
    await asyncio.to_thread(engine.stop)
    assert engine.statistics().pages_used == 0


async def collect(engine: AsyncEngine, name: str, max_new_tokens: int) -> list[TokenDelta]:
    return [delta async for delta in lone_stream(engine, make_request(name, 5, max_new_tokens))]


def joined(deltas: list[TokenDelta]) -> tuple[int, ...]:
    return sum((delta.token_ids for delta in deltas), ())


async def test_streams_side_by_side(engine: Engine, runner: FakeRunner, gate: Gate) -> None:
    gate.open()
    streams = AsyncEngine(engine)
    results = await asyncio.gather(*(collect(streams, f"{n}", 1 + 5 * n) for n in range(6)))
    for n, deltas in enumerate(results):
        assert joined(deltas) == runner.expected_tokens(make_request(f"{n}", 5, 1 + 5 * n))
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason == "length"


async def test_a_slow_reader_gets_fewer_and_bigger_deltas(engine: Engine, runner: FakeRunner, gate: Gate) -> None:
    stream = lone_stream(AsyncEngine(engine), make_request("a", 5, 20))
    first = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(gate.wait)
    await asyncio.to_thread(gate.let_run, 1)
    assert len((await first).token_ids) == 1
    await asyncio.to_thread(gate.let_run, 7)
    assert len((await anext(stream)).token_ids) == 7
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(gate.let_run, 1)
    assert len((await waiting).token_ids) == 1
    gate.open()
    rest = [delta async for delta in stream]
    assert len(joined(rest)) == 11
    assert rest[-1].finish_reason == "length"


async def test_an_unread_stream_delays_no_other(engine: Engine, runner: FakeRunner, gate: Gate) -> None:
    streams = AsyncEngine(engine)
    silent = lone_stream(streams, make_request("silent", 5, 40))
    first = asyncio.ensure_future(anext(silent))
    await asyncio.to_thread(gate.wait)
    await asyncio.to_thread(gate.let_run, 1)
    await first  # and then it reads no more
    reading = asyncio.ensure_future(collect(streams, "reads", 30))
    while "reads" not in engine._inbox._live:
        await asyncio.sleep(0)
    steps = runner.steps
    gate.open()
    assert joined(await reading) == runner.expected_tokens(make_request("reads", 5, 30))
    assert runner.steps - steps <= 1 + 40  # none was spent on waiting
    while engine.statistics().running:
        await asyncio.sleep(0)
    await asyncio.wrap_future(engine.release_memory())  # the engine has sent all
    await asyncio.to_thread(delivered, engine)
    await asyncio.sleep(0)  # what the last steps delivered is in the loop's queue by now
    assert len((await anext(silent)).token_ids) == 39  # kept as one delta, not as one for each token
    await silent.aclose()


@pytest.mark.parametrize("how", ["closed", "cancelled", "never awaited again"])
async def test_leaving_a_stream_aborts_its_request(how: str, engine: Engine, gate: Gate) -> None:
    stream = lone_stream(AsyncEngine(engine), make_request("a", 5, 100))
    task = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(gate.wait)
    assert "a" in engine._inbox._live
    if how == "cancelled":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await asyncio.to_thread(gate.let_run, 1)
        await task
        if how == "closed":
            await stream.aclose()
        else:
            del stream, task
            await asyncio.sleep(0)  # lets the loop's hook close the generator
            await asyncio.sleep(0)
    assert "a" not in engine._inbox._live
    gate.open()


async def test_breaking_out_of_a_stream_aborts_its_request(engine: Engine, gate: Gate) -> None:
    gate.open()
    async with aclosing(lone_stream(AsyncEngine(engine), make_request("a", 5, 100))) as stream:
        async for _ in stream:
            break
    assert "a" not in engine._inbox._live


async def test_an_id_may_be_used_again_at_once(engine: Engine, runner: FakeRunner, gate: Gate) -> None:
    gate.open()
    streams = AsyncEngine(engine)
    for _ in range(50):
        async with aclosing(lone_stream(streams, make_request("a", 5, 100))) as stream:
            assert (await anext(stream)).token_ids[0] == runner.expected_tokens(make_request("a", 5, 1))[0]


async def test_errors_reach_the_stream(engine: Engine, gate: Gate) -> None:
    streams = AsyncEngine(engine)
    with pytest.raises(RequestTooLongError):
        await anext(lone_stream(streams, make_request("a", 5, 1000)))
    task = asyncio.ensure_future(collect(streams, "b", 100))
    await asyncio.to_thread(gate.wait)
    stopping = asyncio.ensure_future(asyncio.to_thread(engine.stop))
    while engine.healthy:
        await asyncio.sleep(0)
    gate.open()
    with pytest.raises(EngineStoppedError):
        await task
    await stopping


def test_a_closed_loop_ends_its_requests() -> None:
    gate = Gate()
    engine = Engine(FakeRunner(before_step=gate))
    engine.start()

    async def begin() -> None:
        task = asyncio.ensure_future(collect(AsyncEngine(engine), "a", 100))
        await asyncio.to_thread(gate.wait)
        task.cancel()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.open()
    engine.stop()
    assert not engine._inbox._live
