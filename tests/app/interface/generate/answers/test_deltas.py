import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.deltas import choice_deltas
from app.interface.generate.planning.job import Job
from app.interface.request.observers import Observed
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.generate.planning.test_generation import chat
from tests.app.tiny_model import reference_tokenizer, tiny_model

MODEL = tiny_model()
TEXT = reference_tokenizer().encode("Hello STOP, 🎉 more").ids


async def run(job: Job, worker: FakeWorker) -> tuple[dict[int, str], dict[int, str | None], int]:
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    tokens = 0
    async with aclosing(choice_deltas(job, MODEL, Observed(worker.generate))) as batches:
        async for batch in batches:
            for delta in batch:
                texts[delta.index] = texts.get(delta.index, "") + delta.text
                tokens += delta.tokens
                if delta.finish_reason is not None:
                    reasons[delta.index] = delta.finish_reason
    return texts, reasons, tokens


@pytest.mark.parametrize("each", [1, 2, 100])
async def test_text_and_usage(each: int) -> None:
    worker = FakeWorker(lambda _: deltas(TEXT, each=each, finish_reason="length"))
    assert await run(chat(), worker) == ({0: "Hello STOP, 🎉 more"}, {0: "length"}, len(TEXT))
    assert worker.closed == 0


@pytest.mark.parametrize("each", [1, 2, 3, 100])
async def test_a_stop_string_ends_the_text_the_stream_and_the_count(each: int) -> None:
    worker = FakeWorker(lambda _: deltas(TEXT, each=each))
    texts, reasons, tokens = await run(chat(stop=["STOP", "never"]), worker)
    assert (texts, reasons) == ({0: "Hello "}, {0: "stop"})
    spelled = [reference_tokenizer().decode(TEXT[:count]) for count in range(len(TEXT) + 1)]
    assert tokens == next(count for count, text in enumerate(spelled) if "STOP" in text)
    assert (worker.running, worker.closed) == (0, 1)


async def test_a_stop_string_that_does_not_come_is_given_back() -> None:
    token_ids = reference_tokenizer().encode("Hello STO").ids
    texts, reasons, _ = await run(chat(stop="STOP"), FakeWorker(lambda _: deltas(token_ids, finish_reason="length")))
    assert (texts, reasons) == ({0: "Hello STO"}, {0: "length"})


async def test_choices_run_at_once_and_keep_their_places() -> None:
    def script(request: GenerateRequest) -> list[TokenDelta]:
        return deltas(TEXT[: 1 + (request.sampling.seed or 0)])

    worker = FakeWorker(script)
    texts, reasons, tokens = await run(chat(n=3, seed=1), worker)
    assert texts == {i: reference_tokenizer().decode(TEXT[: 2 + i]) for i in range(3)}
    assert reasons == dict.fromkeys(range(3), "stop")
    assert tokens == 2 + 3 + 4


async def test_a_slow_reader_gets_fewer_bigger_deltas() -> None:
    async with aclosing(choice_deltas(chat(), MODEL, Observed(FakeWorker(lambda _: deltas(TEXT)).generate))) as batches:
        first = await anext(batches)
        for _ in range(100):
            await asyncio.sleep(0)
        rest = await anext(batches)
    assert first == [ChoiceDelta(0, "H", 1, None)]
    assert rest == [ChoiceDelta(0, "ello STOP, 🎉 more", len(TEXT) - 1, "stop")]


async def test_an_error_comes_after_the_text_before_it_and_closes_the_other_choices() -> None:
    def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
        if request.sampling.seed == 1:
            return [TokenDelta((TEXT[0],)), EngineStoppedError("gone")]
        return [TokenDelta((token,)) for token in TEXT * 100]

    worker = FakeWorker(script)
    texts: list[str] = []

    async def read() -> None:
        async for batch in choice_deltas(chat(n=2, seed=1), MODEL, Observed(worker.generate)):
            texts.extend(delta.text for delta in batch if delta.index == 0)

    with pytest.raises(EngineStoppedError, match="gone"):
        await read()
    assert "".join(texts) == "H"
    assert (worker.running, worker.closed) == (0, 1)


async def test_a_refusal_is_raised_before_any_delta() -> None:
    batches = choice_deltas(chat(n=2), MODEL, Observed(FakeWorker(lambda _: [QueueFullError("full")]).generate))
    with pytest.raises(QueueFullError):
        await anext(batches)


async def test_closing_the_stream_closes_every_choice() -> None:
    worker = FakeWorker(lambda _: deltas(TEXT), hang_after=1)
    batches = choice_deltas(chat(n=3), MODEL, Observed(worker.generate))
    await anext(batches)
    await worker.started.wait()
    assert worker.running == 3
    await batches.aclose()
    assert (worker.running, worker.closed) == (0, 3)


async def test_cancelling_before_the_first_delta_closes_every_choice() -> None:
    worker = FakeWorker(lambda _: deltas(TEXT), hang_after=0)
    batches = choice_deltas(chat(n=2), MODEL, Observed(worker.generate))
    waiting = asyncio.ensure_future(anext(batches))
    await worker.started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (worker.running, worker.closed) == (0, 2)


@pytest.mark.parametrize("script", [[], [TokenDelta((4,))]])
async def test_a_stream_without_an_end_is_a_bug_and_not_an_answer(script: list[TokenDelta]) -> None:
    with pytest.raises(RuntimeError, match="finish reason"):
        await run(chat(), FakeWorker(lambda _: script))


async def test_a_worker_that_gives_up_does_not_leave_the_reader_waiting() -> None:
    async def cancelled(_: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        yield TokenDelta((TEXT[0],))
        raise asyncio.CancelledError

    batches = choice_deltas(chat(), MODEL, Observed(cancelled))
    await anext(batches)
    with pytest.raises(EngineStoppedError):
        await anext(batches)
