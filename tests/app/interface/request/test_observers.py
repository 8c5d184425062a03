"""Observers see what is used of each delta, in order, and are told once how the sequence ended."""

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from app.interface.request.observers import Observe, Observed, Observer
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker

REQUEST = GenerateRequest("r", (1, 2, 3), 8, tenant=b"")
SCRIPT = [TokenDelta((5,)), TokenDelta((6,), "length")]


def seeing(name: str, seen: list[Any]) -> Observe:
    return lambda request: Observer(
        lambda delta: seen.append((name, *delta.token_ids)), lambda error: seen.append((name, type(error)))
    )


async def test_each_delta_is_seen_before_it_is_read_and_the_end_once() -> None:
    seen: list[Any] = []
    generate = Observed(FakeWorker(lambda _: SCRIPT).generate, [seeing("a", seen), seeing("b", seen)])
    read = seeing("read", seen)(REQUEST).saw
    async for delta in generate(REQUEST):
        read(delta)
    passed = [(who, token) for token in (5, 6) for who in ("a", "b", "read")]
    assert seen == [*passed, ("a", type(None)), ("b", type(None))]


@pytest.mark.parametrize(
    ("script", "saw", "end"),
    [
        ([TokenDelta((5,)), ValueError()], [5], ValueError),
        (SCRIPT, [5], GeneratorExit),
        ([ValueError()], [], ValueError),
    ],
)
async def test_observers_hear_what_ended_a_sequence(script: list[Any], saw: list[int], end: type) -> None:
    seen: list[Any] = []
    worker = FakeWorker(lambda _: script)
    async with aclosing(Observed(worker.generate, [seeing("a", seen)])(REQUEST)) as read:
        with suppress(ValueError):
            await anext(read)
            if end is not GeneratorExit:
                await anext(read)
    assert seen == [*(("a", token) for token in saw), ("a", end)]


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_reader_that_has_all_it_wants_says_what_it_used(is_gone: bool) -> None:
    """The observers hear of the end before the worker has ended, which may take a while."""
    seen: list[Any] = []

    async def generate(_: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        try:
            yield TokenDelta((5, 6, 7), "length")
        finally:
            seen.append("closed")

    with suppress(CancelledError):
        async with Observed(generate, [seeing("a", seen)]).begun(REQUEST) as (read, saw):
            delta = await anext(read)
            saw(delta._replace(token_ids=delta.token_ids[:2], finish_reason=None))
            if is_gone:
                raise CancelledError
    assert seen == [("a", 5, 6), ("a", CancelledError if is_gone else type(None)), "closed"]


async def test_a_sequence_begins_once_it_is_permitted_and_ends_before_it_is_let_go() -> None:
    happened: list[str] = []

    def begins(request: GenerateRequest) -> Observer:
        happened.append(request.request_id)
        return Observer(lambda _: None, lambda _: happened.append("ended"))

    async def permit(request: GenerateRequest) -> GenerateRequest:
        happened.append("asked")
        return replace(request, request_id="permitted")

    @contextmanager
    def hold() -> Iterator[None]:
        happened.append("held")
        yield
        happened.append("let go")

    worker = FakeWorker(lambda _: SCRIPT)
    async for _ in Observed(worker.generate, [begins], permit, hold)(REQUEST):
        pass
    assert happened == ["held", "asked", "permitted", "ended", "let go"]
    assert worker.requests[0].request_id == "permitted"
