"""Users' streams with long silences."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.interface.generate import reception
from app.interface.users.knowledge.searching import KnowledgeSearch
from app.messages.accounts import AccountsError
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
    await exchange.until(lambda it: it.body.count(b"event: ") > 0)
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


class Searches:
    """Searches that go on when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> None:
        self.may_go, self.left = asyncio.Event(), asyncio.Event()
        documents = KnowledgeSearch.documents

        async def held(search: KnowledgeSearch, *given: Any) -> Any:
            try:
                await self.may_go.wait()
                if failure is not None:
                    raise failure
                return await documents(search, *given)
            finally:
                self.left.set()

        monkeypatch.setattr(KnowledgeSearch, "documents", held)
        monkeypatch.setattr(reception, "_SEARCHING_S", SOON_S)


class Searching:
    """A user's stream whose search is held."""

    def __init__(self, site: Site, secret: str, collection_id: str, conversation_id: str) -> None:
        self.site, self.conversation_id = site, conversation_id
        tools = [{"type": "file_search", "vector_store_ids": [collection_id], "max_num_results": 2}]
        self._body = RESPONSE | {"tools": tools, "conversation": conversation_id}
        self._headers = {"authorization": f"Bearer {secret}"}

    @classmethod
    async def begun(cls, make_site: Callable[..., Site], **settings: Any) -> "Searching":
        worker = HeldWorker()
        worker.may_go.set()
        site = make_site(worker, **settings)
        site.add("ann")
        secret = await site.log_in("ann")
        client = client_of(site, secret)
        collection = await client.vector_stores.create(name="Leases")
        return cls(site, secret, collection.id, (await client.conversations.create()).id)

    def asked(self, **more: Any) -> Exchange:
        return Exchange(self.site.app, "/v1/responses", self._body | STREAM | more, headers=self._headers)


def is_told(exchange: Exchange) -> bool:
    return b"event: response.file_search_call.searching\n" in exchange.body


async def test_a_client_is_told_that_its_question_is_searched(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, searches = await Searching.begun(make_site), Searches(monkeypatch)
    exchange = world.asked()
    await exchange.until(is_told)
    assert [event["type"] for event in events(exchange.body)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
    ]
    searches.may_go.set()
    shown = events((await exchange.ended()).body)
    kinds = [event["type"] for event in shown]
    assert kinds[5:7] == ["response.file_search_call.completed", "response.output_item.done"]
    assert (kinds[-1], len(kinds)) == ("response.completed", len({event["sequence_number"] for event in shown}))
    assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
    first, last = shown[0]["response"], shown[-1]["response"]
    assert (first["id"], first["created_at"]) == (last["id"], last["created_at"])
    assert {event["item_id"] for event in shown[3:6]} == {last["output"][0]["id"]}
    assert text_of(shown) == TEXT


async def test_a_search_that_fails_then_ends_the_stream(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = Searches(monkeypatch, AccountsError("service_unavailable", "The accounts do not answer."))
    world = await Searching.begun(make_site)
    exchange = world.asked()
    await exchange.until(is_told)
    searches.may_go.set()
    shown = events((await exchange.ended()).body)
    assert [event["sequence_number"] for event in shown] == list(range(7))
    assert (shown[-2]["type"], shown[-2]["item"]["status"]) == ("response.output_item.done", "incomplete")
    failed = shown[-1]["response"]
    assert (failed["status"], failed["error"]["message"]) == ("failed", "The accounts do not answer.")
    while world.site.gate._background_tasks:
        await asyncio.gather(*world.site.gate._background_tasks)
    assert (await world.asked(stream=False).ended()).status == 503, "and its conversation is open again"
    monkeypatch.setattr(reception, "_SEARCHING_S", 10.0)
    assert (await world.asked().ended()).status == 503


async def test_a_client_that_leaves_ends_its_search(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, searches = await Searching.begun(make_site), Searches(monkeypatch)
    exchange = world.asked()
    await exchange.until(is_told)
    exchange.leave()
    await exchange.ended()
    assert searches.left.is_set()
    while world.site.gate._background_tasks:
        await asyncio.gather(*world.site.gate._background_tasks)
    searches.may_go.set()
    assert events((await world.asked().ended()).body)[-1]["type"] == "response.completed"


async def test_an_answer_in_the_background_begins_with_its_own_events(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await Searching.begun(make_site, keep_alive_comment_s=SOON_S)
    searches = Searches(monkeypatch)
    exchange = world.asked(background=True)
    await exchange.until(comments(2))
    assert events(exchange.body) == []
    searches.may_go.set()
    shown = events((await exchange.ended()).body)
    assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
    assert (shown[0]["type"], shown[-1]["type"]) == ("response.created", "response.completed")
