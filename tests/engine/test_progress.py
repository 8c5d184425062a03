"""What requests that ask are told of their prompts before the first token."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.engine.stream import AsyncEngine
from app.messages.bundle import Assembler
from app.messages.failures import StepFailedError
from app.messages.outputs import PromptProgress, TokenDelta
from app.messages.requests import BeamParams, GenerateRequest
from tests.engine.searches.test_branches import search_request
from tests.engine.test_engine import MIX, Gate, Receiver, Start, make_request, start
from tests.fakes import FakeRunner
from tests.streams import lone_stream

__all__ = ["start"]  # a fixture


@pytest.fixture
def period(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda seconds: monkeypatch.setattr("app.engine.progress.PERIOD_S", seconds)


def asking(request: GenerateRequest) -> GenerateRequest:
    return replace(request, reports_progress=True)


def ask(name: str, prompt_tokens: int, max_new_tokens: int) -> GenerateRequest:
    return asking(make_request(name, prompt_tokens, max_new_tokens))


def news(receiver: Receiver, name: str) -> list[PromptProgress]:
    """All that came before the first token; after it there is none."""
    events = receiver.events[name]
    told = [event.progress for event in events if isinstance(event, TokenDelta) and event.progress is not None]
    assert all(isinstance(event, TokenDelta) and not event.has_output for event in events[: len(told)])
    return told


def read(told: list[PromptProgress]) -> list[int]:
    return [each.read_tokens for each in told]


def queued(told: list[PromptProgress]) -> list[int | None]:
    return [each.queued_ahead for each in told]


def test_a_prompt_is_told_of_chunk_by_chunk_to_its_end(start: Start, period: Callable[[float], None]) -> None:
    period(0.0)
    receiver, runner = Receiver(), FakeRunner(max_step_tokens=16)
    engine = start(runner)
    request = ask("long", 100, 5)
    receiver.submit(engine, request)
    assert receiver.tokens("long") == runner.expected_tokens(request)
    told = news(receiver, "long")
    assert read(told) == [0, 16, 32, 48, 64, 80, 96, 100]
    assert queued(told) == [None] * 8
    assert {(each.total_tokens, each.cached_tokens) for each in told} == {(100, 0)}
    times_s = [each.elapsed_s for each in told]
    assert times_s[0] == 0 < times_s[-1]
    assert times_s == sorted(times_s)


def test_cached_tokens_count_as_read(start: Start, period: Callable[[float], None]) -> None:
    period(0.0)
    receiver = Receiver()
    engine = start(FakeRunner(max_step_tokens=16, page_tokens=4))
    first = make_request("first", 60, 1)
    receiver.submit(engine, first)
    receiver.tokens("first")
    prompt = (*first.prompt_token_ids[:42], *range(40))
    receiver.submit(engine, GenerateRequest("second", prompt, 3, tenant=b"", reports_progress=True))
    receiver.tokens("second")
    told = news(receiver, "second")
    assert read(told) == [40, 56, 72, 82]
    assert {each.cached_tokens for each in told} == {40}


def test_a_waiting_request_moves_up(start: Start, period: Callable[[float], None]) -> None:
    period(0.0)
    receiver, gate = Receiver(), Gate()
    engine = start(FakeRunner(max_sequences=1, before_step=gate))
    for name in ("runs", "next", "last"):
        receiver.submit(engine, ask(name, 5, 4))
    gate.open()
    receiver.tokens("last")
    assert queued(news(receiver, "runs")) == [None, None]
    assert queued(news(receiver, "next")) == [0, None, None]
    assert queued(news(receiver, "last")) == [1, 0, None, None]
    assert read(news(receiver, "last")) == [0, 0, 0, 5]
    assert [each.elapsed_s for each in news(receiver, "last")][:3] == [0.0, 0.0, 0.0]


def test_no_more_often_than_the_period(start: Start, period: Callable[[float], None]) -> None:
    period(1000.0)
    receiver, runner = Receiver(), FakeRunner(max_step_tokens=4, max_sequences=1)
    engine = start(runner)
    for name in ("first", "second"):
        receiver.submit(engine, ask(name, 100, 2))
    receiver.tokens("second")
    assert read(news(receiver, "first")) == [0, 100]
    assert queued(news(receiver, "second")) in ([0, None], [None, None])
    assert runner.steps > 50


def test_who_does_not_ask_is_told_nothing_and_gets_the_same_messages(start: Start) -> None:
    calls = []
    for is_asking in (False, True):
        receiver = Receiver()
        engine = start(FakeRunner(max_step_tokens=16))
        receiver.submit(engine, make_request("quiet", 100, 9))
        if is_asking:
            receiver.submit(engine, ask("asks", 5, 9))
        receiver.tokens("quiet")
        assert all(isinstance(event, TokenDelta) and event.progress is None for event in receiver.events["quiet"])
        assert len(receiver.events["quiet"]) == 9
        calls.append(receiver.calls)
        assert not engine._progress.watched
    assert calls[0] == 9


@pytest.mark.parametrize("shape", [{}, {"kv_pages": 27, "max_sequences": 6}, {"max_step_tokens": 9}], ids=str)
def test_nothing_goes_back_whatever_is_preempted(
    shape: dict[str, Any], start: Start, period: Callable[[float], None]
) -> None:
    period(0.0)
    receiver, gate = Receiver(), Gate()
    runner = FakeRunner(**shape, before_step=gate)
    engine = start(runner, expected_output_tokens=1, prompt_chunk_tokens=5)
    for request in MIX:
        receiver.submit(engine, asking(request))
    gate.open()
    for request in MIX:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
        told = news(receiver, request.request_id)
        assert read(told) == sorted(read(told))
        assert (told[-1].read_tokens, told[-1].queued_ahead) == (len(request.prompt_token_ids), None)
        assert all(each.cached_tokens <= each.read_tokens <= each.total_tokens for each in told)
    assert (engine.statistics().preemptions > 0) == (shape.get("kv_pages") == 27)
    assert not engine._progress.watched


def test_a_beam_search_tells_of_its_prompt_long_before_its_answer(
    start: Start, period: Callable[[float], None]
) -> None:
    period(0.0)
    receiver, runner = Receiver(), FakeRunner(max_step_tokens=16)
    engine = start(runner)
    receiver.submit(engine, asking(search_request("beams", 40, 10, BeamParams(3))))
    receiver.tokens("beams")
    assert read(news(receiver, "beams")) == [0, 16, 32, 40]
    assert len(receiver.events["beams"]) == 5


def test_requests_that_end_early_are_watched_no_more(start: Start, period: Callable[[float], None]) -> None:
    period(0.0)
    receiver, gate = Receiver(), Gate()
    runner = FakeRunner(max_sequences=1, max_step_tokens=8, before_step=gate)
    engine = start(runner)
    receiver.submit(engine, ask("fails", 50, 4))
    receiver.submit(engine, ask("leaves", 60, 4))  # after the other one, which is shorter
    gate.wait()
    gate.let_run(2)
    assert len(engine._progress.watched) == 2
    engine.abort("leaves")

    def fail(batch: object) -> None:
        raise RuntimeError("no step")

    runner.before_step = fail
    gate.open()
    assert isinstance(receiver.error("fails"), StepFailedError)
    assert read(news(receiver, "fails")) == [0, 8, 16, 24]
    engine.stop()
    assert not engine._progress.watched


async def test_a_stream_has_the_news_before_and_the_last_of_it_with_the_first_token(
    start: Start, period: Callable[[float], None]
) -> None:
    period(0.0)
    gate, runner = Gate(), FakeRunner(max_step_tokens=16)
    runner.before_step = gate
    streams = AsyncEngine(start(runner))
    stream = lone_stream(streams, ask("a", 40, 3))
    first = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(gate.wait)
    assert await first == TokenDelta((), progress=PromptProgress(40, 0, 0, 0.0, None))
    await asyncio.to_thread(gate.let_run, 2)
    late = await anext(stream)  # two steps have been, and the news of the last one is enough
    assert late.progress is not None
    assert (late.token_ids, late.progress.read_tokens) == ((), 32)
    gate.open()
    rest = [delta async for delta in stream]
    assert rest[0].progress is not None
    assert (rest[0].progress.read_tokens, len(rest[0].token_ids) > 0) == (40, True)
    assert all(delta.progress is None for delta in rest[1:])
    assert sum((delta.token_ids for delta in rest), ()) == runner.expected_tokens(ask("a", 40, 3))


async def test_others_tokens_travel_beside_the_news(start: Start, period: Callable[[float], None]) -> None:
    """Two streams of one reader, one of which decodes while the other's prompt is read."""
    period(0.0)
    runner = FakeRunner(max_step_tokens=16, kv_pages=128)
    streams = AsyncEngine(start(runner, prompt_chunk_tokens=4))
    requests = [make_request("decodes", 3, 60), ask("reads", 100, 20)]
    outputs = {request.request_id: Assembler() for request in requests}

    async def collect(request: GenerateRequest) -> None:
        async for bundle in streams.stream(request, reader="one"):
            for part in bundle:
                outputs[part.request_id].put(part)

    await asyncio.gather(*map(collect, requests))
    for request in requests:
        deltas: list[TokenDelta] = []
        while (delta := outputs[request.request_id].take()) is not None:
            deltas.append(delta)
        assert sum((delta.token_ids for delta in deltas), ()) == runner.expected_tokens(request)
        told = [delta.progress.read_tokens for delta in deltas if delta.progress is not None]
        assert told == sorted(told)
        assert told[-1:] == ([100] if request.reports_progress else [])
