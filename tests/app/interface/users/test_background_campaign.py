"""Background answers interrupted at random steps leave nothing closed, open, counted or half stored."""

import asyncio
import random
from collections.abc import Callable

import pytest

from app.interface.users import stored_answers
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests import sizes
from tests.app.fake_worker import deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import Site
from tests.app.interface.users.test_background import ANSWER, SteppedWorker, World, settled
from tests.app.interface.users.test_conversations import hang_up

ROUNDS = 60 if sizes.FULL else 20
ACCOUNT_CALLS = ("begin_turn", "items", "begin_response", "add_question", "store_response", "end_turn", "done")


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    """The worker sometimes refuses, or breaks."""
    whole: list[TokenDelta | Exception] = [*deltas(tokens_of(ANSWER))]
    match len(request.prompt_token_ids) % 5:
        case 0:
            return [*whole[:3], EngineStoppedError("The worker stopped.")]
        case 1:
            return [QueueFullError()]
        case _:
            return whole


@pytest.mark.parametrize("seed", range(3 if sizes.FULL else 1))
async def test_nothing_is_left_of_an_interruption(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(stored_answers, "_TRY_AGAIN_S", (0.0,) * 3)
    site = make_site(worker := SteppedWorker(script))
    site.add("ann")
    world = World(site, worker, await site.log_in("ann"))
    chance = random.Random(seed)
    for number in range(ROUNDS):
        world.id = (await world.client.conversations.create()).id
        body = {"model": "tiny", "input": "x" * chance.randrange(9), "conversation": world.id, "background": True}
        body["stream"] = chance.random() < 0.5
        is_away = chance.random() < 0.1  # the accounts, for longer than is retried
        if chance.random() < 0.5:
            failing = chance.sample(ACCOUNT_CALLS, chance.randrange(1, 3)) * chance.randrange(1, 4)
            site.accounts.failing = failing
        if is_away:
            site.accounts.failing += ["store_response"] * 10
        worker.let(chance.randrange(4))
        asking = asyncio.create_task(
            hang_up(site, world.secret, body, after=chance.choice([b"delta", b"created", b"-"]))
        )
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        await interrupted(world, chance, asking)
        worker.let()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.gather(*site.gate.running._tasks, return_exceptions=True)
        await settled(site)
        site.accounts.failing = []
        worker._steps = asyncio.Semaphore(0)
        await check_whole(world, f"seed {seed}, round {number}", may_be_open=is_away)


async def interrupted(world: World, chance: random.Random, asking: "asyncio.Task[None]") -> None:
    running = [*world.site.gate.running._answers]
    match chance.randrange(6):
        case 0:
            asking.cancel()
        case 1 if running:
            await world.site.ask("POST", f"/v1/responses/{running[-1]}/cancel", world.secret)
        case 2 if running:
            await world.site.ask("DELETE", f"/v1/responses/{running[-1]}", world.secret)
        case 3:
            await world.site.ask("DELETE", f"/v1/conversations/{world.id}", world.secret)
        case 4:
            await world.site.gate.running.close()
        case _:
            pass


async def check_whole(world: World, when: str, *, may_be_open: bool) -> None:
    site = world.site
    assert not site.gate._open, when
    assert world.worker.running == 0, when
    assert not site.inside.turns._of_conversation, when
    for one in [*site.gate.running._answers]:
        site.gate.running.forget(one)
        found = await site.ask("GET", f"/v1/responses/{one}", world.secret)
        assert found.status_code in (200, 404), when
        if found.status_code == 200 and not may_be_open:
            assert found.json()["status"] not in ("queued", "in_progress"), when
    kept = await site.ask("GET", f"/v1/conversations/{world.id}/items?order=asc", world.secret)
    if kept.status_code == 200:
        assert [item["role"] for item in kept.json()["data"]] in ([], ["user"], ["user", "assistant"]), when
