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
