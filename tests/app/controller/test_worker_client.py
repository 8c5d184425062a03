"""Answers whose workers are lost, in every way: the real client and real engines, with a fake model and without Ray."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import BackPressureError, RequestCancelledError

from app.controller import worker_client
from app.controller.unfinished import ENOUGH_TOKENS, MOST_LOSSES
from app.controller.worker_client import Arrivals, WorkerClient
from app.engine.engine import Engine
from app.engine.stream import AsyncEngine
from app.messages.bundle import Bundle
from app.messages.crashes import CRASHES_FOLDER
from app.messages.failures import (
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    ModelReplacedError,
    NoWorkerError,
    PlaceWantedBackError,
    QueueFullError,
    RequestGivenUpError,
    StepFailedError,
)
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest, Priority, SamplingParams
from tests.fakes import FakeRunner
from tests.streams import with_the_loop

Fault = Callable[[], BaseException]
ACTOR = b"\x07" * 16


def killed() -> BaseException:
    return ActorUnavailableError("gone", ACTOR)


def once(messages: int, fault: Fault | None = None) -> Callable[[GenerateRequest], tuple[int, Fault] | None]:
    """The first worker is killed after so many messages."""
    return lambda asked: None if "~" in asked.request_id else (messages, fault or killed)


class Workers:
    """In place of a deployment's handle. Each call goes to one engine, which may fail after some messages."""

    def __init__(self) -> None:
        self.runner = FakeRunner(
            kv_pages=256,
            max_sequences=16,
            max_step_tokens=64,
            max_context_tokens=128,
            before_step=with_the_loop(),
        )
        self.engine = Engine(self.runner)
        self.engine.start()
        self.streams = AsyncEngine(self.engine)
        self.next_fault: Callable[[GenerateRequest], tuple[int, Fault] | None] = lambda request: None
        """Of a request's call: after so many messages that error."""
        self.on_fault: Callable[[], None] = lambda: None
        self.places = 0
        self.asked: list[GenerateRequest] = []
        self.calls: list[Call] = []
        self.generate = self

    def options(self, **options: Any) -> "Workers":
        return self

    def remote(self, request: GenerateRequest, reader: str) -> "Call":
        self.asked.append(request)
        return Call(self, request, reader)


class Call:
    """In place of a DeploymentResponseGenerator."""

    def __init__(self, workers: Workers, request: GenerateRequest, reader: str) -> None:
        self._workers, self._request, self._reader = workers, request, reader
        self.actor: str | None = None
        self.is_stopped = False
        """Whether nothing comes of it any more, though the engine goes on."""
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, fault: BaseException) -> None:
        if not self._fault.done():
            self._fault.set_exception(fault)

    async def __aiter__(self) -> AsyncIterator[Bundle]:
        workers = self._workers
        left, fault = workers.next_fault(self._request) or (-1, killed)
        workers.calls.append(self)
        try:
            async with aclosing(workers.streams.stream(self._request, reader=self._reader)) as bundles:
                while True:
                    if left == 0:
                        self.fail(fault())
                        workers.on_fault()
                    left -= 1
                    following = asyncio.ensure_future(anext(bundles, None))
                    await asyncio.wait((following, self._fault), return_when=asyncio.FIRST_COMPLETED)
                    if self._fault.done():
                        following.cancel()
                        await asyncio.gather(following, return_exceptions=True)
                        self._fault.result()
                    if (bundle := following.result()) is None:
                        return
                    if self.is_stopped:
                        await asyncio.Event().wait()
                    yield bundle
        finally:
            workers.calls.remove(self)

    def cancel(self) -> None:
        pass


@pytest.fixture
async def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Workers]:
    monkeypatch.setattr(worker_client, "session_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(WorkerClient, "has_workers", lambda self: True)
    monkeypatch.setattr(worker_client, "_GONE_S", 0.01)
    workers = Workers()
    monkeypatch.setattr(WorkerClient, "places", lambda self: workers.places)
    yield workers
    async with asyncio.timeout(60):
        while workers.engine.statistics().pages_used:  # of streams that were just closed
            await asyncio.sleep(0.01)
    await asyncio.to_thread(workers.engine.stop)  # its last step may still wait for this loop


def client_of(workers: Workers, wait_s: float = 60.0) -> WorkerClient:
    handle: Any = workers
    return WorkerClient(handle, Arrivals(), wait_for_worker_s=wait_s)


def request(name: str = "r", tokens: int = 30, **options: Any) -> GenerateRequest:
    sampling = options.pop("sampling", SamplingParams(temperature=1.0, seed=7))
    return GenerateRequest(name, tuple(range(10, 25)), tokens, sampling, tenant=b"", **options)


async def read(deltas: AsyncGenerator[TokenDelta, None]) -> tuple[int, ...]:
    tokens: list[int] = []
    reasons = []
    async with aclosing(deltas):
        async for delta in deltas:
            tokens += delta.token_ids
            reasons.append(delta.finish_reason)
    assert reasons[-1] is not None
    assert not any(reasons[:-1])
    return tuple(tokens)


async def test_a_worker_is_lost_after_each_message(workers: Workers) -> None:
    asked = request()
    whole = workers.runner.expected_tokens(asked)
    for messages in range(31):
        workers.next_fault = once(messages)
        client = client_of(workers)
        assert await read(client.generate(asked)) == whole
        assert client.losses[Loss.LOST] == len(workers.asked) - 1
        assert len(workers.asked) == 2 or messages > 1  # several tokens may be one message
        workers.asked.clear()


async def test_a_loss_is_told_with_the_first_delta_after_it(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    workers.next_fault = once(5)
    async with aclosing(client_of(workers).generate(request())) as deltas:
        told = [delta.losses async for delta in deltas]
    assert told.index((Loss.LOST,)) >= 4
    assert [losses for losses in told if losses] == [(Loss.LOST,)]
    assert "tokens request r goes on elsewhere" in caplog.text, "the log says which"


@pytest.mark.parametrize("fault", [RequestCancelledError, asyncio.CancelledError])
async def test_a_client_that_goes_is_no_loss(
    workers: Workers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Serve cancels the call before the request learns that its client is gone."""
    monkeypatch.setattr(worker_client, "_GONE_S", 0.5)
    workers.next_fault = once(1, fault)
    client = client_of(workers)
    reading = asyncio.create_task(read(client.generate(request(tokens=100))))
    async with asyncio.timeout(60):
        while not workers.calls:
            await asyncio.sleep(0)
        while workers.calls:  # until it is cancelled
            await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await asyncio.sleep(0.6)
    assert sum(client.losses.values()) == 0
    assert "A worker is lost" not in caplog.text


async def test_hundreds_of_losses_beside_each_other(workers: Workers) -> None:
    """Each answer loses its worker some times at once, and then again after enough tokens."""
    random = Random(5)
    faults = [killed, RequestCancelledError, EngineStoppedError]
    kinds = [SamplingParams(temperature=float(i % 2), seed=i) for i in range(16)]
    some = [request(f"r{i}", 110, sampling=kind, stop_token_ids=frozenset(range(i))) for i, kind in enumerate(kinds)]

    def lose(asked: GenerateRequest) -> tuple[int, Fault]:
        attempt = int(asked.request_id.partition("~")[2] or 1)
        messages = random.randrange(4) if attempt % (MOST_LOSSES - 1) else random.randrange(2, 4) * ENOUGH_TOKENS
        return messages, random.choice(faults)

    workers.next_fault = lose
    client = client_of(workers)
    for _ in range(4):
        answers = await asyncio.gather(*(read(client.generate(one)) for one in some))
        assert answers == [workers.runner.expected_tokens(one) for one in some]
    assert sum(client.losses.values()) > 100


async def test_without_a_seed_it_goes_on_with_the_one_that_it_began_with(workers: Workers) -> None:
    workers.next_fault = once(12)
    tokens = await read(client_of(workers).generate(request(sampling=SamplingParams(temperature=1.0))))
    first, second = workers.asked
    assert first.sampling.seed is not None
    assert second.sampling == first.sampling
    assert tokens == workers.runner.expected_tokens(replace(first, resumed_token_ids=()))


@pytest.mark.parametrize("search", [BeamParams(3, answers=2), ContrastiveParams(4, 0.5)])
async def test_a_search_begins_again_and_nothing_comes_twice(workers: Workers, search: Any) -> None:
    asked = request(tokens=12, search=search, sampling=SamplingParams(temperature=0.0))
    clean = await read(client_of(workers).generate(asked))
    for messages in range(4):
        workers.next_fault = once(messages)
        assert await read(client_of(workers).generate(asked)) == clean
        assert workers.asked[-1].resumed_token_ids == ()


async def test_an_engine_that_ends_in_order_hands_over(workers: Workers) -> None:
    """A worker that is drained."""
    other = Workers()
    client = client_of(workers)
    asked = request(tokens=100)
    taken: list[int] = []
    try:
        async with aclosing(client.generate(asked)) as deltas:
            async for delta in deltas:
                taken += delta.token_ids
                if len(taken) >= 20 and workers.streams is not other.streams:
                    ending, workers.streams = workers.engine, other.streams
                    await asyncio.to_thread(ending.stop)
        assert tuple(taken) == workers.runner.expected_tokens(asked)
        assert client.losses == {Loss.CRASHED: 0, Loss.LOST: 0, Loss.MOVED: 1}
    finally:
        other.engine.stop()


def mark(tmp_path: Path) -> None:
    folder = tmp_path / CRASHES_FOLDER
    folder.mkdir(exist_ok=True)
    (folder / ACTOR.hex()).write_text("Fatal Python error: Segmentation fault")


async def test_a_request_that_crashes_workers_is_not_tried_a_third_time(workers: Workers, tmp_path: Path) -> None:
    """Nor do the ones beside it suffer, although they were there at the first crash."""
    mark(tmp_path)

    def crash_all() -> None:
        for call in list(workers.calls):
            call.fail(killed())

    workers.next_fault = lambda asked: (1, killed) if asked.request_id.startswith("poison") else None
    workers.on_fault = crash_all
    client = client_of(workers)
    harmless = [request(f"r{i}", 90, sampling=SamplingParams(temperature=1.0, seed=i)) for i in range(6)]
    bad, *good = await asyncio.gather(
        read(client.generate(request("poison"))),
        *(read(client.generate(one)) for one in harmless),
        return_exceptions=True,
    )
    assert isinstance(bad, RequestGivenUpError)
    assert good == [workers.runner.expected_tokens(one) for one in harmless]
    assert sum(asked.request_id.startswith("poison") for asked in workers.asked) == 2
    assert client.losses[Loss.CRASHED] > 7  # each at the first crash, and some at the second


async def test_steps_that_fail_count_as_crashes(workers: Workers) -> None:
    workers.next_fault = lambda asked: (2, lambda: StepFailedError("no"))
    with pytest.raises(RequestGivenUpError, match="2 workers"):
        await read(client_of(workers).generate(request()))


async def test_killed_workers_are_not_the_requests_fault_for_long(workers: Workers) -> None:
    workers.next_fault = lambda asked: (2, killed)
    with pytest.raises(RequestGivenUpError):
        await read(client_of(workers).generate(request()))
    assert len(workers.asked) == MOST_LOSSES


async def test_while_no_worker_is_up_requests_wait_for_a_time(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_up = False
    monkeypatch.setattr(WorkerClient, "has_workers", lambda self: is_up)
    with pytest.raises(NoWorkerError):
        await read(client_of(workers, 0.2).generate(request()))
    waiting = asyncio.create_task(read(client_of(workers, 60.0).generate(request())))
    await asyncio.sleep(0.5)
    assert workers.asked == []
    is_up = True
    assert await waiting == workers.runner.expected_tokens(request())


async def test_the_time_in_which_the_router_finds_no_worker_counts_too(workers: Workers) -> None:
    """A router that can reach none says so only after seconds; the wait does not begin then."""

    def search(asked: GenerateRequest) -> tuple[int, Fault]:
        time.sleep(0.3)
        return 0, lambda: NoWorkerError("none")

    workers.next_fault = search
    with pytest.raises(NoWorkerError):
        await read(client_of(workers, 0.2).generate(request()))
    assert len(workers.asked) == 1


@pytest.mark.parametrize("messages", [0, 12])
async def test_an_answer_of_a_model_that_was_replaced_ends_at_once(workers: Workers, messages: int) -> None:
    """With the router's error, or the worker's, before the answer has begun and after that."""
    workers.next_fault = lambda asked: (messages, lambda: ModelReplacedError("The model was replaced."))
    began_s = time.monotonic()
    with pytest.raises(ModelReplacedError):
        await read(client_of(workers, 600.0).generate(request()))
    assert time.monotonic() - began_s < 60
    assert len(workers.asked) == 1


async def test_a_full_queue_refuses_what_has_not_begun(workers: Workers) -> None:
    workers.next_fault = lambda asked: (0, lambda: BackPressureError(1, 1))
    with pytest.raises(QueueFullError):
        await read(client_of(workers).generate(request()))

    def full_after_a_loss(asked: GenerateRequest) -> tuple[int, Fault] | None:
        return {1: (5, killed), 2: (0, lambda: BackPressureError(1, 1)), 3: (0, lambda: NoWorkerError("none"))}.get(
            len(workers.asked)
        )

    workers.asked.clear()
    workers.next_fault = full_after_a_loss
    assert await read(client_of(workers).generate(request())) == workers.runner.expected_tokens(request())
    assert len(workers.asked) == 4


@pytest.mark.parametrize("error", [InvalidRequestError("no"), EngineError("no")])
async def test_a_refusal_is_not_tried_again(workers: Workers, error: EngineError) -> None:
    workers.next_fault = lambda asked: (1, lambda: error)
    with pytest.raises(type(error)):
        await read(client_of(workers).generate(request()))
    assert len(workers.asked) == 1


async def test_what_was_read_of_the_prompt_comes_once(workers: Workers) -> None:
    workers.next_fault = once(4)
    await read(client_of(workers).generate(request(reports_progress=True)))
    first, second = workers.asked
    assert first.reports_progress
    assert not second.reports_progress
    assert second.resumed_token_ids


async def test_a_caller_leaves_places_to_others_and_is_told_when_there_are_more(workers: Workers) -> None:
    workers.places = 16
    client = client_of(workers)
    workers.next_fault = lambda asked: (1, QueueFullError) if asked.tenant == b"refused" else None
    assert len(await read(client.generate(request()))) == 30
    streams = [client.generate(replace(request(f"r{i}", 110), client=b"greedy")) for i in range(16)]
    for stream in streams[:15]:
        await anext(stream)
    with pytest.raises(QueueFullError, match="as many requests here as one may have") as refused:
        await anext(streams[15])
    assert refused.value.retry_after_s == 1
    assert len(await read(client.generate(replace(request("other"), client=b"modest")))) == 30
    others = [client.generate(replace(request(f"o{i}", 110), client=b"%d" % i)) for i in range(2)]
    await anext(others[0])
    asked = len(workers.asked)
    with pytest.raises(QueueFullError, match="their queues are full"):
        await anext(others[1])
    assert len(workers.asked) == asked, "no worker was asked"
    for stream in (*streams, *others):
        await stream.aclose()
    assert len(await read(client.generate(replace(request("again"), client=b"greedy")))) == 30
    assert not client._open


async def test_a_request_of_a_batch_waits_as_long_as_it_must(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a place, for a worker, and for the place that it has given back; nobody else has fewer places for it."""
    monkeypatch.setattr(worker_client, "_LOOK_OF_BATCH_S", 0.001)
    workers.places = 1
    faults: list[tuple[int, type[EngineError]]] = [(0, QueueFullError), (0, NoWorkerError)] * 3
    faults += [(2, PlaceWantedBackError), (0, QueueFullError), (1, PlaceWantedBackError)]
    workers.next_fault = lambda asked: faults.pop(0) if asked.priority is Priority.BATCH and faults else None
    client = client_of(workers, wait_s=0.0)
    line = request("line", priority=Priority.BATCH)
    reading = asyncio.create_task(read(client.generate(line)))
    other = asyncio.create_task(read(client.generate(request("other", priority=Priority.BATCH))))
    chat = await read(client.generate(request("chat")))
    assert await reading == await other == chat == workers.runner.expected_tokens(line)
    assert not faults
    assert not any(client.losses.values())


async def test_a_worker_that_stands_still_is_left(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "_SILENCE_S", 0.2)
    monkeypatch.setattr(worker_client, "actor_of_call", lambda call: call.actor)
    asked: list[str] = []

    async def stands_still(handle: Any, actor: str) -> bool:
        asked.append(actor)
        return actor == "stopped"

    monkeypatch.setattr(worker_client, "stands_still", stands_still)
    workers.runner.before_step = lambda batch: time.sleep(0.02)
    client = client_of(workers)
    stream = client.generate(request(tokens=60))
    tokens = list((await anext(stream)).token_ids)
    (call,) = workers.calls
    call.actor = "stopped"
    call.is_stopped = True
    answer = asyncio.create_task(read(stream))
    assert (*tokens, *await answer) == workers.runner.expected_tokens(request(tokens=60))
    assert (len(workers.asked), client.losses[Loss.LOST], asked) == (2, 1, ["stopped"])
