"""Users' streams with long silences."""

import asyncio
from collections.abc import Callable

from app.messages.failures import EngineStoppedError
from tests.app.exchange import Exchange
from tests.app.interface.test_keep_alive import RESPONSE, SOON_S, STREAM, TEXT, HeldWorker, comments, events, text_of
from tests.app.interface.users.here import Site
from tests.app.interface.users.test_conversations import client_of


async def test_a_background_response_tells_that_it_waits(make_site: Callable[..., Site]) -> None:
    worker = HeldWorker()
    site = make_site(worker, keep_alive_comment_s=SOON_S)
    site.add("ann")
    secret = await site.log_in("ann")
    body = RESPONSE | STREAM | {"background": True}
    exchange = Exchange(site.app, "/v1/responses", body, headers={"authorization": f"Bearer {secret}"})
    await exchange.until(comments(1))
    assert events(exchange.body)[0]["type"] == "response.created"
    worker.may_go.set()
    shown = events((await exchange.ended()).body)
    assert text_of(shown) == TEXT
    assert shown[-1]["type"] == "response.completed"


async def test_a_late_failure_leaves_its_conversation_open(make_site: Callable[..., Site]) -> None:
    worker = HeldWorker([EngineStoppedError("worker lost")])
    site = make_site(worker, keep_alive_comment_s=SOON_S)
    site.add("ann")
    secret = await site.log_in("ann")
    conversation = (await client_of(site, secret).conversations.create()).id
    body = RESPONSE | STREAM | {"conversation": conversation}
    for _ in range(2):  # the second one is no conflict
        worker.may_go.clear()
        exchange = Exchange(site.app, "/v1/responses", body, headers={"authorization": f"Bearer {secret}"})
        await exchange.until(comments(1))
        worker.may_go.set()
        last = events((await exchange.ended()).body)[-1]
        assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", "worker lost")
        while site.gate._background_tasks:
            await asyncio.gather(*site.gate._background_tasks)
