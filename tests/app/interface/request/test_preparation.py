import asyncio
import threading
import time

import pytest

from app.interface.request.preparation import HUGE_BODY_BYTES, LONG_BODY_BYTES, Preparation


async def test_short_bodies_are_prepared_at_once_and_huge_ones_one_after_another() -> None:
    preparation, here = Preparation(), threading.get_ident()
    assert await preparation.run(LONG_BODY_BYTES - 1, threading.get_ident) == here
    assert await preparation.run(LONG_BODY_BYTES, threading.get_ident) != here
    huge = [preparation.run(HUGE_BODY_BYTES, threading.get_ident) for _ in range(4)]
    assert len(set(await asyncio.gather(*huge))) == 1


async def test_long_bodies_do_not_wait_for_huge_ones() -> None:
    preparation, go_on = Preparation(), threading.Event()
    huge = [asyncio.create_task(preparation.run(HUGE_BODY_BYTES, go_on.wait)) for _ in range(4)]
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    assert await preparation.run(LONG_BODY_BYTES, lambda: 7) == 7
    assert time.monotonic() - began_s < 60
    assert not any(task.done() for task in huge)
    go_on.set()
    await asyncio.gather(*huge)


@pytest.mark.parametrize("size_bytes", [0, LONG_BODY_BYTES, HUGE_BODY_BYTES])
async def test_errors_reach_the_caller(size_bytes: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await Preparation().run(size_bytes, lambda: 1 // 0)
