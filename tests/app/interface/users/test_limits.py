"""Users' limits, a request's usage, and what ends a running request."""

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.accounts.accounts import OPERATOR_ACTS
from app.interface.users.checks import rate_headers
from app.messages.accounts import RateState, UsageRow, UserChange, UserLimits
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import PromptProgress, TokenDelta
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import CHAT, Site

CHATS = "/v1/chat/completions"


async def test_requests_a_minute(site: Site) -> None:
    site.add("ann", limits=UserLimits(requests_per_minute=2))
    site.add("bob")
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    key = (await site.ask("POST", "/v1/keys", ann, {})).json()["secret"]
    first = await site.ask("POST", CHATS, ann, CHAT)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert "x-ratelimit-limit-tokens" not in first.headers
    await site.ask("POST", CHATS, key, CHAT)
    third = await site.ask("POST", CHATS, ann, CHAT)
    assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert third.json()["error"]["type"] == "rate_limit_error"
    assert 0 < int(third.headers["retry-after"]) <= 61
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.headers["x-ratelimit-reset-requests"].endswith("s")
    assert len(site.worker.requests) == 2
    assert (await site.ask("GET", "/v1/models", ann)).status_code == 200  # asks no worker
    other = await site.ask("POST", CHATS, bob, CHAT)
    assert other.status_code == 200
    assert not any(name.startswith("x-ratelimit") for name in other.headers)


async def test_tokens_of_the_day(site: Site) -> None:
    site.add("ann", limits=UserLimits(tokens_per_day=10))
    ann = await site.log_in("ann")
    first = await site.ask("POST", CHATS, ann, CHAT)
    assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "10")
    await asyncio.gather(*site.gate._background_tasks)
    second = await site.ask("POST", CHATS, ann, CHAT)
    assert (second.status_code, second.json()["error"]["code"]) == (429, "insufficient_quota")
    assert second.headers["x-ratelimit-remaining-tokens"] == "0"
    site.restart()
    assert await site.code("POST", CHATS, ann, CHAT) == "429 insufficient_quota"


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_at_the_same_time(make_site: Callable[..., Site], stream: bool) -> None:
    worker = FakeWorker(lambda _: deltas([5, 6]), hang_after=1)
    site = make_site(worker)
    site.add("ann", limits=UserLimits(concurrent=1))
    ann = await site.log_in("ann")
    running = asyncio.create_task(site.ask("POST", CHATS, ann, CHAT | {"stream": stream}))
    await worker.started.wait()
    assert await site.code("POST", CHATS, ann, CHAT) == "429 rate_limit_exceeded"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    while site.gate._open or site.gate._background_tasks:
        await asyncio.sleep(0.01)
    worker._hang_after = None
    for _ in range(3):  # one after the other; a stream's place is free when it has ended
        assert (await site.ask("POST", CHATS, ann, CHAT | {"stream": stream})).status_code == 200
        await asyncio.gather(*site.gate._background_tasks)


async def test_a_client_that_goes_while_it_is_admitted_holds_no_place(site: Site) -> None:
    site.add("ann", limits=UserLimits(concurrent=1))
    ann = await site.log_in("ann")
    assert (await site.ask("GET", "/v1/models", ann)).status_code == 200  # from now on the identity is known
    await site.give_up("POST", CHATS, ann, CHAT, "admit")
    assert (await site.ask("POST", CHATS, ann, CHAT)).status_code == 200


async def test_a_call_that_the_ingress_gives_up_holds_no_place(site: Site) -> None:
    site.add("ann", limits=UserLimits(concurrent=1))
    ann = await site.log_in("ann")
    for turns in range(6):  # of the loop, before it is given up: the work has not begun, runs, or is done
        call = asyncio.create_task(site.service.admit("here", ann))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = not call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.gather(*site.service._tasks)
        if was_done:
            await site.accounts.done(UsageRow(site.inside.logins.identify(ann).user_id, "c", "", "m", 1, 0, 0, 0))
        assert (await site.ask("POST", CHATS, ann, CHAT)).status_code == 200
        await asyncio.gather(*site.gate._background_tasks)


def failing(_: Any) -> list[TokenDelta | Exception]:
    return [QueueFullError("full")]


@pytest.mark.parametrize("body", [CHAT, CHAT | {"n": "x"}, {"model": "nothing", "messages": CHAT["messages"]}])
async def test_a_place_is_given_back_by_every_way_out(make_site: Callable[..., Site], body: dict[str, Any]) -> None:
    site = make_site(FakeWorker(failing))
    site.add("ann", limits=UserLimits(concurrent=1))
    ann = await site.log_in("ann")
    for _ in range(3):
        code = await site.code("POST", CHATS, ann, body)
        assert code != "429 rate_limit_exceeded"
        await asyncio.gather(*site.gate._background_tasks)
    assert site.gate._open == set()
    (row,) = site.inside.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    assert (row.requests, row.prompt, row.output) == (3, 0, 0)


@pytest.mark.parametrize(
    ("path", "body", "output"),
    [
        (CHATS, CHAT, 4),
        (CHATS, CHAT | {"stream": True}, 4),
        (CHATS, CHAT | {"n": 3}, 12),
        ("/v1/completions", {"model": "tiny", "prompt": ["hi", "ho"]}, 8),
        ("/v1/responses", {"model": "tiny", "input": "hi"}, 4),
        ("/v1/messages", CHAT | {"max_tokens": 9}, 4),
    ],
)
async def test_what_a_request_took_is_counted_once_for_each_prompt(
    make_site: Callable[..., Site], path: str, body: dict[str, Any], output: int
) -> None:
    site = make_site(FakeWorker(lambda _: [TokenDelta((5,), cached_tokens=2), *deltas([6, 7, 8])]))
    ann = site.add("ann").info
    answer = await site.ask("POST", path, await site.log_in("ann"), body)
    assert answer.status_code == 200, answer.text
    await asyncio.gather(*site.gate._background_tasks)
    (row,) = site.inside.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    prompts = {request.prompt_token_ids for request in site.worker.requests}
    prompt = sum(map(len, prompts))
    cached = min(2 * len(site.worker.requests), prompt)
    assert row == UsageRow(ann.id, row.credential, row.day, "tiny", 1, prompt, cached, output)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_prompt_is_charged_with_its_first_token_and_not_with_news_of_it(
    make_site: Callable[..., Site], is_lost: bool
) -> None:
    def script(_: Any) -> list[TokenDelta | Exception]:
        news = TokenDelta((), progress=PromptProgress(9, 4, 4, 0.0, None))
        return [news, EngineStoppedError("lost")] if is_lost else [news, *deltas([6, 7, 8])]

    site = make_site(FakeWorker(script))
    site.add("ann")
    body = {"model": "tiny", "input": "hi", "stream": True, "return_progress": True}
    assert "response.prompt_progress" in (await site.ask("POST", "/v1/responses", await site.log_in("ann"), body)).text
    await asyncio.gather(*site.gate._background_tasks)
    (row,) = site.inside.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    assert (row.prompt > 0, row.output) == ((False, 0) if is_lost else (True, 3))


# --- what ends a request ---------------------------------------------------------------------------------------------


async def running_stream(site: Site, secret: str) -> "asyncio.Task[Any]":
    task = asyncio.create_task(site.ask("POST", CHATS, secret, CHAT | {"stream": True}))
    await site.worker.started.wait()
    return task


ENDS: dict[str, Callable[[Site], Any]] = {
    "disable": lambda site: site.ask("POST", "/v1/admin/users/ann", site_root(site), {"state": "disabled"}),
    "delete": lambda site: site.ask("DELETE", "/v1/admin/users/ann", site_root(site)),
    "reset": lambda site: site.ask(
        "POST", "/v1/admin/users/ann/reset", site_root(site), {"password": "another long password"}
    ),
}


def site_root(site: Site) -> str:
    challenge = site.inside.logins.challenge("root")
    return site.inside.logins.log_in(challenge, challenge.stretched("a long enough password")).token


@pytest.mark.parametrize("hang_after", [0, 2])
@pytest.mark.parametrize("how", [*ENDS, "logout", "revoke"])
async def test_a_running_stream_ends_at_once(make_site: Callable[..., Site], how: str, hang_after: int) -> None:
    worker = FakeWorker(lambda _: deltas([5, 6, 7]), hang_after=hang_after)
    site = make_site(worker)
    site.add("root", role="admin")
    site.add("ann")
    site.add("bob")
    session = await site.log_in("ann")
    key = (await site.ask("POST", "/v1/keys", session, {})).json()
    secret = key["secret"] if how == "revoke" else session
    async with site.watching():
        bobs = await running_stream(site, await site.log_in("bob"))
        worker.started.clear()
        anns = await running_stream(site, secret)
        if how == "logout":
            await site.ask("POST", "/v1/auth/logout", session, {})
        elif how == "revoke":
            await site.ask("DELETE", f"/v1/keys/{key['id']}", session)
        else:
            assert (await ENDS[how](site)).status_code == 200
        answer = await asyncio.wait_for(anns, 60)
        code = "invalid_api_key" if how == "revoke" else "session_expired"
        if hang_after == 0:  # nothing was sent yet: it still has a status
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
        else:
            last = answer.text.strip().split("\n\n")[-1].removeprefix("data: ")
            assert json.loads(last)["error"]["code"] == code
        assert worker.closed == 1  # the engine's request was ended too
        assert not bobs.done()
        assert await site.code("POST", CHATS, secret, CHAT) == f"401 {code}"
        bobs.cancel()
        await asyncio.gather(bobs, return_exceptions=True)


async def test_a_change_of_limits_ends_nothing_and_holds_at_once(make_site: Callable[..., Site]) -> None:
    worker = FakeWorker(lambda _: deltas([5, 6, 7]), hang_after=1)
    site = make_site(worker)
    site.add("ann")
    ann = await site.log_in("ann")
    async with site.watching():
        running = await running_stream(site, ann)
        site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(limits=UserLimits(concurrent=1)))
        assert await site.code("POST", CHATS, ann, CHAT) == "429 rate_limit_exceeded"
        await asyncio.sleep(0.05)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_revocation_between_identity_and_admission_is_not_missed(make_site: Callable[..., Site]) -> None:
    worker = FakeWorker(lambda _: deltas([5, 6, 7]))
    site = make_site(worker)
    site.add("ann")
    ann = await site.log_in("ann")
    assert (await site.ask("GET", "/v1/models", ann)).status_code == 200
    site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(state="disabled"))
    assert (await site.ask("GET", "/v1/models", ann)).status_code == 200  # at most `revocation_s` long
    assert await site.code("POST", CHATS, ann, CHAT) == "401 session_expired"
    assert worker.requests == []


async def test_identities_are_kept_for_seconds_only(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now_s[0], time=time.time)
    monkeypatch.setattr("app.interface.users.gate.time", clocks)
    site = make_site(revocation_s=0.2)
    site.add("ann")
    ann = await site.log_in("ann")
    for _ in range(5):
        assert (await site.ask("GET", "/v1/models", ann)).status_code == 200
    assert site.accounts.calls.count("identify") == 1
    site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(state="disabled"))
    now_s[0] += 0.25
    assert await site.code("GET", "/v1/models", ann) == "401 session_expired"


async def test_a_revocation_is_not_lost_where_the_accounts_fail_meanwhile(make_site: Callable[..., Site]) -> None:
    site = make_site(FakeWorker(lambda _: deltas([5, 6, 7]), hang_after=1))
    site.add("ann")
    ann = await site.log_in("ann")
    async with site.watching():
        running = await running_stream(site, ann)
        site.accounts.failing = ["identify"]
        site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(state="disabled"))
        await site.service._in_database(lambda: site.inside.store.changes.add("wake"))
        assert "session_expired" in (await asyncio.wait_for(running, 60)).text
    assert site.accounts.failing == []


async def test_accounts_that_are_down_and_come_back(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.accounts.service._POLL_S", 0.5)
    worker = FakeWorker(lambda _: deltas([5, 6, 7]), hang_after=1)
    site = make_site(worker)
    site.add("ann")
    site.add("bob")
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    async with site.watching():
        streams = [await running_stream(site, ann)]
        worker.started.clear()
        streams.append(await running_stream(site, bob))
        site.accounts.is_down = True
        assert await site.code("POST", CHATS, ann, CHAT) == "503 service_unavailable"
        site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(state="disabled"))
        site.restart()
        site.accounts.is_down = False
        # Another instance: whatever was known is asked again, also of the requests that run.
        answer = await asyncio.wait_for(streams[0], 90)
        assert "session_expired" in answer.text
        assert not streams[1].done()
        streams[1].cancel()
        await asyncio.gather(*streams, return_exceptions=True)


def test_rate_headers_are_written_as_openai_writes_them() -> None:
    rates = RateState(10, 3, 0.02, 1000, 900, 3723.5)
    assert rate_headers(rates) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "20ms",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "900",
        "x-ratelimit-reset-tokens": "1h2m3.5s",
    }
    assert rate_headers(RateState(1, 0, 360.0))["x-ratelimit-reset-requests"] == "6m0s"
    assert rate_headers(RateState()) == {}
