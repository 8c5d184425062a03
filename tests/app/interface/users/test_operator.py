"""What administrators see of the service: workers, places, failures and usage, and no texts."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from app.interface.request.recent_failures import MOST_FAILURES, REQUEST_ID_HEADER
from app.messages.failures import QueueFullError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import CHAT, PASSWORD, Site
from tests.app.service import http_app, http_client

CANARY = "a-canary-in-a-request"
UUID = "01234567-89ab-4cde-8f01-23456789abcd"


def failing(request: GenerateRequest) -> list[TokenDelta | Exception]:
    """Answers by the prompt's length: refused, a bug, broken off by either, and correct."""
    match request.max_new_tokens:
        case 1:
            return [QueueFullError(CANARY)]
        case 2:
            return [ZeroDivisionError(CANARY)]
        case 3:
            return [TokenDelta((5,)), ZeroDivisionError(CANARY)]
        case _:
            return list(deltas([5, 6]))


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    site = make_site(FakeWorker(failing))
    site.add("root", role="admin")
    return site


async def overview_of(site: Site, secret: str) -> dict[str, Any]:
    answer = await site.ask("GET", "/v1/admin/overview", secret)
    assert answer.status_code == 200, answer.text
    overview: dict[str, Any] = answer.json()
    return overview


def told(failure: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(failure[name] for name in ("method", "route", "status", "code", "is_stream"))


async def test_the_service_now(site: Site) -> None:
    overview = await overview_of(site, await site.log_in("root"))
    assert overview["object"] == "overview"
    assert overview["at"] > 1.7e9
    assert overview["ingress"] == {
        "id": "i1",
        "node": "here",
        "replicas": 1,
        "version": "1.2.3",
        "up_since": 4.5,
        "open_requests": 1,
        "max_open_requests": 512,
    }
    (model,) = overview["models"]
    assert (model["id"], model["workers"], model["running"], model["waiting"]) == ("tiny", 1, 0, 0)
    (worker,) = overview["workers"]
    assert (worker["worker_id"], worker["node"], worker["state"], worker["tier"]) == ("w1", "here", "alive", "scalar")
    assert (worker["kv_pages"], worker["kv_pages_free"], worker["saved_bytes"]) == (8, 6, 3000)
    assert (worker["max_running"], worker["max_waiting"], worker["generated_tokens_per_s"]) == (2, 4, 8.5)
    assert overview["failures"] == []


async def test_open_requests_are_counted(make_site: Callable[..., Site]) -> None:
    worker = FakeWorker(lambda _: deltas([5]), hang_after=0)
    site = make_site(worker)
    site.add("root", role="admin")
    root = await site.log_in("root")
    asking = asyncio.create_task(site.ask("POST", "/v1/chat/completions", root, CHAT))
    await worker.started.wait()
    assert (await overview_of(site, root))["ingress"]["open_requests"] == 2
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_failures_are_told_by_id_and_without_a_text(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Secrets wherever a client can write."""
    ann = site.add("ann").info
    session = await site.log_in("ann")
    key = (await site.ask("POST", "/v1/keys", session, {"label": CANARY})).json()
    chat, said = "/v1/chat/completions", {"messages": [{"role": "user", "content": CANARY}]}
    await site.ask("POST", chat, key["secret"], CHAT | said | {"max_tokens": 1}, **{REQUEST_ID_HEADER: UUID})
    await site.ask("POST", chat, session, CHAT | said | {"max_tokens": 2}, **{REQUEST_ID_HEADER: CANARY})
    broken = await site.ask("POST", chat, session, CHAT | said | {"max_tokens": 3, "stream": True})
    assert broken.status_code == 200
    assert "internal_error" in broken.text
    await site.ask("POST", chat, session, CHAT | {CANARY: 1})
    await site.ask("POST", chat, session, CHAT | {"model": CANARY})
    await site.ask("POST", chat, session, CHAT | {"messages": [{"role": CANARY, "content": "x"}]})
    await site.ask("GET", f"/v1/models/{CANARY}?{CANARY}={CANARY}", session)
    await site.ask("GET", f"/v1/{CANARY}", session)
    await site.ask("GET", "/v1/models", f"rdbt_{CANARY}")
    await site.ask("POST", "/v1/auth/login", None, {"name": CANARY, "password": CANARY})
    await site.client.post(chat, content=CANARY, headers={"Authorization": f"Bearer {session}", "Content-Type": CANARY})
    await site.ask(CANARY, chat, session)
    await site.ask(CANARY, f"/v1/{CANARY}", session)
    assert (await site.ask("POST", chat, session, CHAT | said)).status_code == 200

    root = await site.log_in("root")
    answer = await site.ask("GET", "/v1/admin/overview", root)
    for hidden in (CANARY, key["secret"], session, root, PASSWORD):
        assert hidden not in answer.text
    failures = answer.json()["failures"]
    assert [told(failure) for failure in reversed(failures)] == [
        ("POST", chat, 429, "queue_full", False),
        ("POST", chat, 500, "internal_error", False),
        ("POST", chat, 500, "internal_error", True),
        ("POST", chat, 400, "unknown_parameter", False),
        ("POST", chat, 404, "model_not_found", False),
        ("POST", chat, 400, "invalid_value", False),
        ("GET", "/v1/models/{name:path}", 404, "model_not_found", False),
        ("GET", "/v1/{path:path}", 404, "unknown_url", False),
        ("GET", "/v1/models", 401, "invalid_api_key", False),
        ("POST", "/v1/auth/login", 401, "invalid_login", False),
        ("POST", chat, 415, None, False),
    ]
    first, bug, *_ = reversed(failures)
    assert (first["request_id"], first["user_id"], first["credential"]) == (UUID, ann.id, key["id"])
    assert bug["request_id"].startswith("req-")
    assert bug["request_id"] in caplog.text, "the log has it under the same id"
    assert [failure["user_id"] for failure in failures[1:3]] == [None, None]
    assert failures[0]["at"] >= failures[-1]["at"]


async def test_an_answer_in_the_background_that_fails_is_told(site: Site) -> None:
    root = await site.log_in("root")
    body = {"model": "tiny", "input": CANARY, "background": True, "max_output_tokens": 3}
    begun = await site.ask("POST", "/v1/responses", root, body)
    assert begun.json()["status"] in ("queued", "in_progress")
    async with asyncio.timeout(60):
        while not (failures := (await overview_of(site, root))["failures"]):
            await asyncio.sleep(0.01)
    assert [told(failure) for failure in failures] == [("POST", "/v1/responses", 500, "internal_error", True)]
    assert failures[0]["user_id"] is not None


async def test_wrong_requests_do_not_push_out_failures_of_the_service(site: Site) -> None:
    root = await site.log_in("root")
    await site.ask("POST", "/v1/chat/completions", root, CHAT | {"max_tokens": 2})
    for _ in range(MOST_FAILURES + 5):
        await site.ask("GET", "/v1/models", None)
    failures = (await overview_of(site, root))["failures"]
    assert len(failures) == MOST_FAILURES + 1
    assert [failure["status"] for failure in failures].count(401) == MOST_FAILURES
    assert failures[-1]["status"] == 500


async def test_a_request_that_finds_no_place_is_told(make_site: Callable[..., Site]) -> None:
    worker = FakeWorker(lambda _: deltas([5]), hang_after=0)
    site = make_site(worker)
    await site.client.aclose()
    site.client = http_client(http_app(worker.generate, accounts=site.gate, max_ongoing_requests=1))
    site.add("root", role="admin")
    root = await site.log_in("root")
    asking = asyncio.create_task(site.ask("POST", "/v1/chat/completions", root, CHAT))
    await worker.started.wait()
    assert await site.code("GET", "/v1/models", root) == "503 service_unavailable"
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    (failure,) = (await overview_of(site, root))["failures"]
    assert told(failure) == ("GET", "any", 503, "service_unavailable", False)


async def test_usage_of_each_user(site: Site) -> None:
    ann, token = site.add("ann").info, await site.log_in("ann")
    site.add("bob")
    answer = await site.ask("POST", "/v1/chat/completions", token, CHAT)
    usage = answer.json()["usage"]
    await asyncio.gather(*site.gate._background_tasks)
    root = await site.log_in("root")

    async def listed() -> dict[str, Any]:
        data = (await site.ask("GET", "/v1/admin/usage/users", root)).json()["data"]
        return {row["name"] or row["user_id"]: row for row in data}

    rows = await listed()
    assert rows.keys() == {"ann", "bob", "root"}
    taken = {
        "requests": 1,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": 0,
        "output_tokens": usage["completion_tokens"],
    }
    assert rows["ann"]["user_id"] == ann.id
    assert rows["ann"]["today"] == rows["ann"]["days_7"] == rows["ann"]["days_30"] == taken
    assert set(rows["bob"]["days_30"].values()) == {0}
    await site.ask("DELETE", "/v1/admin/users/ann", root)
    assert (await listed())[ann.id]["name"] is None


async def test_the_document_describes_them(site: Site) -> None:
    described = (await site.client.get("/openapi.json")).json()
    operation = described["paths"]["/v1/admin/overview"]["get"]
    assert "403" in operation["responses"]
    assert {"Overview", "FailedRequest", "WorkerRow", "UserUsageList"} <= described["components"]["schemas"].keys()
    assert "message" not in json.dumps(described["components"]["schemas"]["FailedRequest"])
