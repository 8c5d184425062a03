import asyncio

import pytest

from app.messages.failures import QueueFullError
from app.workers.admission import Admission


async def hold(admission: Admission, release: asyncio.Event) -> None:
    with admission.turn() as turn:
        await turn.wait()
        await release.wait()


async def fail(admission: Admission) -> None:
    with admission.turn() as turn:
        await turn.wait()
        1 / 0  # noqa: B018


async def settled(*tasks: asyncio.Task[None]) -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_requests_run_then_wait_then_are_refused() -> None:
    admission, release = Admission(max_concurrent=2, max_queued=3), asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, release)) for _ in range(5)]
    await settled()
    assert (admission.running, admission.waiting) == (2, 3)
    with pytest.raises(QueueFullError, match="Try again later"):
        await hold(admission, release)
    assert (admission.running, admission.waiting) == (2, 3)
    release.set()
    await asyncio.gather(*tasks)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_without_a_queue_the_next_is_refused_at_once() -> None:
    admission, release = Admission(max_concurrent=1, max_queued=0), asyncio.Event()
    task = asyncio.create_task(hold(admission, release))
    await settled()
    with pytest.raises(QueueFullError):
        await hold(admission, release)
    release.set()
    await task


async def test_a_place_is_free_again_when_the_request_fails() -> None:
    admission = Admission(max_concurrent=1, max_queued=0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await fail(admission)
    assert admission.running == 0


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_place_is_free_again_when_the_client_disconnects(victim: int) -> None:
    admission, release = Admission(max_concurrent=1, max_queued=1), asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, release)) for _ in range(2)]
    await settled()
    tasks[victim].cancel()
    await settled()
    assert (admission.running, admission.waiting) == (1, 0)
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_requests_run_in_order_of_arrival() -> None:
    admission, order = Admission(max_concurrent=1, max_queued=9), list[int]()

    async def run(number: int) -> None:
        with admission.turn() as turn:
            await turn.wait()
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(run(number) for number in range(10)))
    assert order == list(range(10))


async def test_a_waiting_request_knows_how_many_are_ahead() -> None:
    admission, release = Admission(max_concurrent=1, max_queued=3), [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(hold(admission, each)) for each in release]
    await settled()
    with admission.turn() as turn:
        assert (turn.ahead, turn.has_come) == (2, False)
        await turn.wait(within_s=0.001)
        assert (turn.ahead, turn.has_come) == (2, False)
        release[0].set()
        await settled()
        assert (turn.ahead, turn.has_come) == (1, False)
        tasks[2].cancel()
        await settled()
        assert (turn.ahead, turn.has_come) == (0, False)
        release[1].set()
        await turn.wait()
        assert (turn.ahead, turn.has_come) == (0, True)
        assert (admission.running, admission.waiting) == (1, 0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert admission.running == 0


@pytest.mark.parametrize("has_come", [False, True])
async def test_a_request_that_is_cancelled_as_its_turn_comes_gives_its_place_on(has_come: bool) -> None:
    admission, release = Admission(max_concurrent=1, max_queued=2), [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(hold(admission, each)) for each in release]
    await settled()
    if has_come:
        release[0].set()
        await tasks[0]  # the second one has its place, and has had no turn of the loop since
    tasks[1].cancel()
    release[0].set()
    await settled()
    assert (admission.running, admission.waiting) == (1, 0)
    release[2].set()
    await tasks[2]
    assert admission.running == 0


async def test_waits_are_counted_and_timed() -> None:
    admission, release = Admission(max_concurrent=1, max_queued=1), asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, release)) for _ in range(2)]
    await settled()
    assert admission.admitted == 1
    assert admission.queued_s < 0.01
    await asyncio.sleep(0.05)
    release.set()
    await asyncio.gather(*tasks)
    assert admission.admitted == 2
    assert 0.05 <= admission.queued_s < 5
