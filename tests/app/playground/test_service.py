"""What the playground asks besides answers, of a fake `/v1`."""

import asyncio

from app.playground.service import PlaygroundService
from tests.fake_v1 import FakeV1, running


async def test_a_refusal_leaves_no_request_behind() -> None:
    with running(FakeV1(key="open sesame", pause_s=0.5)) as fake:
        assert (await PlaygroundService(fake.url).state("")).needs_key
        assert asyncio.all_tasks() == {asyncio.current_task()}
