import asyncio

import pytest

from app.messages.failures import QueueFullError
from app.workers.admission import Admission


async def hold(admission: Admission, release: asyncio.Event) -> None:
    async with admission.place():
        await release.wait()


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
            async with admission.place():
                1 / 0  # noqa: B018
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
        async with admission.place():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(run(number) for number in range(10)))
    assert order == list(range(10))
