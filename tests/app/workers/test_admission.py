import asyncio

import pytest

from app.messages.failures import QueueFullError
from app.workers.admission import Admission


async def hold(admission: Admission, release: asyncio.Event) -> None:
    with admission.place():
        await release.wait()


async def test_as_many_requests_as_run_and_wait_have_places() -> None:
    admission, release = Admission(max_concurrent=2, max_queued=3), asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, release)) for _ in range(5)]
    await asyncio.sleep(0)
    assert admission.taken == 5
    with pytest.raises(QueueFullError, match="Try again later"):
        await hold(admission, release)
    assert admission.taken == 5
    release.set()
    await asyncio.gather(*tasks)
    assert admission.taken == 0


async def test_a_place_is_free_again_when_the_request_fails_or_its_client_goes() -> None:
    admission = Admission(max_concurrent=1, max_queued=0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), admission.place():
            1 / 0  # noqa: B018
    task = asyncio.create_task(hold(admission, asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert admission.taken == 0


async def test_batches_leave_a_place_free_and_give_theirs_back_the_youngest_first() -> None:
    admission, asked = Admission(max_concurrent=2, max_queued=2), []
    ends = {name: asyncio.Event() for name in "abc"}

    async def hold_of_batch(name: str) -> None:
        with admission.place_of_batch(lambda: asked.append(name)):
            await ends[name].wait()

    lines = [asyncio.create_task(hold_of_batch(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert (admission.taken, admission.of_batches) == (3, 3)
    with pytest.raises(QueueFullError, match="A batch's request"):
        await hold_of_batch("a")
    release = asyncio.Event()
    chats = [asyncio.create_task(hold(admission, release))]
    await asyncio.sleep(0)
    assert asked == ["c"]  # so that one place is free again
    ends["c"].set()
    await lines[2]
    for others in (["c", "b"], ["c", "b", "a"]):
        chats.append(asyncio.create_task(hold(admission, release)))
        await asyncio.sleep(0)
        assert asked == others
        ends[others[-1]].set()
        await lines["abc".index(others[-1])]
    chats.append(asyncio.create_task(hold(admission, release)))
    await asyncio.sleep(0)
    assert (admission.taken, admission.of_batches) == (4, 0)
    release.set()
    await asyncio.gather(*chats)
    assert admission.taken == 0


async def test_a_single_place_is_for_batches_too() -> None:
    admission = Admission(max_concurrent=1, max_queued=0)
    with admission.place_of_batch(lambda: None):
        assert admission.taken == 1
