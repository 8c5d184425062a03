"""CORS: web pages of allowed origins may use the API, and no others."""

from typing import Any

import pytest

from tests.app.exchange import Exchange
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, never

SITE = "https://app.example.com"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def preflight(app: Any, origin: str, path: str = "/v1/chat/completions", **more: str) -> Exchange:
    headers = {"origin": origin, **PREFLIGHT, **{name.replace("_", "-"): value for name, value in more.items()}}
    return await Exchange(app, path, method="OPTIONS", headers=headers).ended()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/chat/completions"])
async def test_a_preflight_of_an_allowed_origin_needs_no_key(path: str) -> None:
    app = http_app(never, api_keys=("k",), allowed_origins=(SITE, "http://localhost:3000"))
    for origin in (SITE, "http://localhost:3000"):
        answer = await preflight(app, origin, path)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origins", [(), (SITE,)], ids=["none", "another"])
@pytest.mark.parametrize("origin", ["https://evil.example", "http://app.example.com", f"{SITE}:8443", "null"])
async def test_other_origins_are_told_nothing(origins: tuple[str, ...], origin: str) -> None:
    app = http_app(never, api_keys=("k",), allowed_origins=origins)
    refused = await preflight(app, origin)
    assert refused.status == 401
    answer = await Exchange(
        app, "/v1/models", method="GET", headers={"origin": origin, "authorization": "Bearer k"}
    ).ended()
    assert answer.status == 200
    assert not [name for one in (refused, answer) for name in one.headers if name.startswith("access-control")]


async def test_a_page_of_an_allowed_origin_reads_answers_and_errors() -> None:
    worker = FakeWorker(lambda _: deltas([1]))
    app = http_app(worker.generate, api_keys=("k",), allowed_origins=(SITE,))
    for key, body, status in (("k", CHAT, 200), ("k", CHAT | {"stream": True}, 200), ("no", CHAT, 401)):
        headers = {"origin": SITE, "authorization": f"Bearer {key}"}
        answer = await Exchange(app, "/v1/chat/completions", body, headers=headers).ended()
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == SITE
        readable = answer.headers["access-control-expose-headers"].lower()
        assert {"x-request-id", "retry-after"} <= {name.strip() for name in readable.split(",")}
        assert answer.headers["vary"] == "Origin"


async def test_an_answer_of_a_full_service_can_be_read_too() -> None:
    app = http_app(never, max_ongoing_requests=0, allowed_origins=(SITE,))
    answer = await Exchange(app, "/v1/models", method="GET", headers={"origin": SITE}).ended()
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (503, SITE)
    assert (await preflight(app, SITE)).status == 200


async def test_all_origins() -> None:
    app = http_app(never, allowed_origins=("*",))
    assert (await preflight(app, "https://anything.example")).headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in (await preflight(app, SITE)).headers


async def test_a_foreign_name_is_refused_before_its_origin_is_looked_at() -> None:
    app = http_app(never, allowed_origins=("*",))
    answer = await preflight(app, "http://evil.example", host="evil.example")
    assert answer.status == 421
    assert "access-control-allow-origin" not in answer.headers


async def test_a_method_that_no_route_has_is_refused_in_the_shape_of_the_api() -> None:
    app = http_app(never, allowed_origins=(SITE,))
    refused = await preflight(app, SITE, access_control_request_method="PUT")
    assert refused.status == 400
    assert refused.headers["content-type"] == "application/json"
    assert b"GET, HEAD, POST, DELETE" in refused.body
