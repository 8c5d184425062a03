"""Observers see each delta before its reader, in order, and are told once how the sequence ended."""

from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from app.interface.request.observers import Observe, Observer, observed
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
    generate = observed(FakeWorker(lambda _: SCRIPT).generate, [seeing("a", seen), seeing("b", seen)])
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
    async with aclosing(observed(worker.generate, [seeing("a", seen)])(REQUEST)) as read:
        with suppress(ValueError):
            await anext(read)
            if end is not GeneratorExit:
                await anext(read)
    assert seen == [*(("a", token) for token in saw), ("a", end)]


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
    async for _ in observed(worker.generate, [begins], permit, hold)(REQUEST):
        pass
    assert happened == ["held", "asked", "permitted", "ended", "let go"]
    assert worker.requests[0].request_id == "permitted"
