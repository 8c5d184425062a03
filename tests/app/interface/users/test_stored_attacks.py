"""Stored conversations under attack and failure: none stays locked, nothing is lost or overwritten."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from app.accounts import tables
from app.interface.http import guard
from app.interface.users import stored_answers
from app.interface.users.routes import conversations
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import Site

ANSWER = "the answer is 42"


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def said(logprobs: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "output_text", "text": "hi", "logprobs": logprobs}]}]


def noting(work: Callable[..., Any], threads: set[threading.Thread]) -> Callable[..., Any]:
    """Records in which threads it is called."""

    def noted(*arguments: Any, **named: Any) -> Any:
        threads.add(threading.current_thread())
        return work(*arguments, **named)

    return noted


class Worker(FakeWorker):
    """Waits for `meanwhile` before it answers."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        if self.meanwhile is not None:
            await self.meanwhile()
        async with aclosing(super().generate(request)) as answer:
            async for delta in answer:
                yield delta


class Talk:
    """A user's conversation."""

    def __init__(self, site: Site, worker: Worker, secret: str, conversation_id: str) -> None:
        self.site = site
        self.worker = worker
        self.secret = secret
        self.path = f"/v1/conversations/{conversation_id}"
        self.id = conversation_id

    async def ask(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        return await self.site.ask(method, path, self.secret, body)

    async def turn(self, **more: Any) -> httpx2.Response:
        """Returns the answer after its background work has ended."""
        answer = await self.ask(
            "POST", "/v1/responses", {"model": "tiny", "input": "hi", "conversation": self.id} | more
        )
        while self.site.gate._background_tasks:
            await asyncio.gather(*self.site.gate._background_tasks, return_exceptions=True)
        return answer

    async def count(self) -> int:
        return int((await self.ask("GET", self.path)).json()["items"])


@pytest.fixture
async def talk(make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> Talk:
    monkeypatch.setattr(stored_answers, "_TRY_AGAIN_S", (0.0, 0.0))
    worker = Worker(lambda _: deltas(tokens_of(ANSWER)))
    site = make_site(worker)
    site.add("ann")
    secret = await site.log_in("ann")
    made = await site.ask("POST", "/v1/conversations", secret, {})
    return Talk(site, worker, secret, made.json()["id"])


async def test_odd_limits_are_refused(talk: Talk) -> None:
    for limit in ("9" * 5000, "٣", "²", "1e1", " 1", "-1", ""):
        for path in ("/v1/conversations", f"{talk.path}/items"):
            assert (await talk.ask("GET", f"{path}?limit={limit}")).status_code == 400, (path, limit)


async def test_odd_ids_are_not_there(talk: Talk) -> None:
    for odd in (
        "%00",
        "%ff",
        "x" * 5000,
        "'",
        "conv_%0a",
        "conv_" + "A" * 32,
        f"{talk.id}%0a",
        "conv_" + "%D9%A1" * 32,
    ):
        for method, path in (
            ("GET", f"/v1/conversations/{odd}"),
            ("DELETE", f"/v1/conversations/{odd}"),
            ("GET", f"/v1/conversations/{odd}/export"),
            ("GET", f"/v1/conversations?q=x&after={odd}"),
            ("DELETE", f"{talk.path}/items/{odd}"),
            ("GET", f"{talk.path}/items?after={odd}"),
            ("DELETE", f"/v1/responses/{odd}"),
            ("GET", f"/v1/responses/{odd}/input_items"),
        ):
            assert (await talk.ask(method, path)).status_code == 404, (method, path)
    assert await talk.count() == 0


async def test_a_cookie_with_no_origin_of_ours_changes_nothing(talk: Talk) -> None:
    for origin in ("http://[", "http://]", "null", "", "//", "http://a:b", "http://test.evil", "http://evil@test"):
        headers = {"origin": origin, "cookie": f"redoubt_session={talk.secret}"}
        answer = await talk.site.client.request("DELETE", talk.path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin"), origin
    assert (await talk.ask("GET", talk.path)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_nested_too_deeply_is_refused_and_not_after_the_answer(talk: Talk, stream: bool) -> None:
    form = {"type": "json_schema", "name": "f", "schema": nested(300)}
    tool = {"type": "function", "name": "f", "parameters": nested(300)}
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"input": said(nested(129))}, "input[0].content[0].logprobs"),
        ({"input": said([[nested(900)]])}, "input[0].content[0].logprobs"),
        ({"tools": [tool], "tool_choice": "none"}, "tools[0].parameters"),
        ({"text": {"format": form}}, "text.format.schema"),
    ]
    for body, param in bodies:
        answer = await talk.turn(stream=stream, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await talk.ask("POST", f"{talk.path}/items", {"items": said(nested(300))})).status_code == 400
    deep = {"tools": [{**tool, "parameters": nested(128)}], "tool_choice": "none"}
    assert (await talk.turn(stream=stream, input=said(nested(128)), **deep)).status_code == 200
    assert await talk.count() == 2
    assert (await talk.ask("GET", f"{talk.path}/items")).json()["data"][1]["content"][0]["logprobs"] == nested(128)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("method", ["begin_turn", "items", "store_response"])
async def test_a_turn_ends_although_the_accounts_failed_in_it(talk: Talk, method: str, stream: bool) -> None:
    talk.site.accounts.failing = [method]
    failed = await talk.turn(stream=stream)
    assert "The accounts do not answer" in failed.text
    assert (await talk.turn(stream=stream)).status_code == 200
    assert await talk.count() == 2


@pytest.mark.parametrize("times", [1, 2])
async def test_a_turn_ends_although_its_end_is_not_heard_at_once(talk: Talk, times: int) -> None:
    talk.site.accounts.failing = ["end_turn"] * times
    assert (await talk.turn(model="none")).status_code == 404
    assert (await talk.turn()).status_code == 200


async def test_an_answer_that_is_stored_is_given_although_its_conversation_gets_no_title(talk: Talk) -> None:
    talk.site.accounts.failing = ["change_conversation"]
    assert (await talk.turn()).json()["status"] == "completed"
    assert await talk.count() == 2
    talk.site.accounts.failing = ["change_conversation"]
    items = [{"role": "user", "content": "and now?"}]
    assert (await talk.ask("POST", f"{talk.path}/items", {"items": items})).status_code == 200
    assert await talk.count() == 3


async def test_a_turn_in_a_conversation_that_does_not_open_ends(talk: Talk) -> None:
    with talk.site.inside.store.transaction() as connection:
        connection.execute(update(tables.conversations).values(sealed=b"x" * 64))
    assert (await talk.turn()).json()["error"]["code"] == "stored_record_damaged"
    assert talk.site.inside.stored_conversations._turns._of_conversation == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_that_ends_during_a_turn(talk: Talk, stream: bool) -> None:
    async def leave() -> None:
        assert (await talk.ask("POST", "/v1/auth/logout", {})).status_code == 200

    talk.worker.meanwhile = leave
    answer = await talk.turn(stream=stream)
    assert "event: response.failed" in answer.text if stream else answer.status_code == 401
    talk.worker.meanwhile = None
    talk.secret = await talk.site.log_in("ann")
    assert await talk.count() == 0
    assert (await talk.turn(stream=stream)).status_code == 200
    assert await talk.count() == 2


@pytest.mark.parametrize("another", [False, True])
async def test_accounts_that_begin_again_during_a_turn(talk: Talk, another: bool) -> None:
    async def restart() -> None:
        talk.worker.meanwhile = None
        talk.site.restart()
        if another:
            assert (await talk.ask("POST", "/v1/responses", body)).status_code == 200

    body = {"model": "tiny", "input": "meanwhile", "conversation": talk.id}
    talk.worker.meanwhile = restart
    answer = await talk.turn()
    assert answer.status_code == (409 if another else 200)
    items = (await talk.ask("GET", f"{talk.path}/items?order=asc")).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["meanwhile" if another else "hi", ANSWER]


@pytest.mark.parametrize("query", ["?q=zebra", "/export?format=md", "/export?format=json", "turn"])
async def test_long_texts_are_worked_on_off_the_event_loop(
    talk: Talk, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [{"role": "user", "content": "hi " * 90_000}]
    assert (await talk.ask("POST", f"{talk.path}/items", {"items": items})).status_code == 200
    threads: set[threading.Thread] = set()
    for module, name in (
        (conversations, "searched_texts"),
        (conversations, "as_markdown"),
        (conversations, "json_response"),
        (stored_answers, "_with_history"),
    ):
        monkeypatch.setattr(module, name, noting(getattr(module, name), threads))
    if query == "turn":
        assert (await talk.turn()).json()["error"]["code"] == "context_length_exceeded"
    elif query.startswith("?"):
        monkeypatch.setattr(conversations, "json_response", guard.json_response)
        assert (await talk.ask("GET", f"/v1/conversations{query}")).json()["data"] == []
    else:
        assert "hi hi hi" in (await talk.ask("GET", f"{talk.path}{query}")).text
    assert threads
    assert threading.main_thread() not in threads


async def test_a_title_that_is_given_during_the_first_turn_stays(talk: Talk) -> None:
    metadata = {"title": "Mine", "colour": "red"}

    async def rename() -> None:
        assert (await talk.ask("POST", talk.path, {"metadata": metadata})).status_code == 200

    talk.worker.meanwhile = rename
    assert (await talk.turn()).status_code == 200
    shown = (await talk.ask("GET", talk.path)).json()
    assert (shown["title"], shown["metadata"], shown["items"]) == ("Mine", metadata, 2)
