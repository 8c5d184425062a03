"""Which names a request's `Host` may have, over the whole application: against DNS rebinding."""

import asyncio
import json
import re
import socket
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from app.interface.http.hosts import AllowedHosts
from tests.app.exchange import http_scope
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, never

FOREIGN = (
    "evil.example",
    "evil.example:8000",
    "EVIL.EXAMPLE",
    "evil.example.",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "127.0.0.1@evil.example",
    "evil.example:8000:8000",
    "[evil.example]:8000",
    "[::1",
    "a b",
    "..",
    "<script>.x",
    "a." * 200 + "x",
)
OWN = (
    "127.0.0.1",
    "127.0.0.1:8000",
    "10.2.3.4:8000",
    "[::1]:8000",
    "[fe80::1]",
    "localhost",
    "LOCALHOST:8000",
    "localhost.",
    "chat.localhost:8000",
    "redoubt-serve-svc:8000",
    socket.gethostname(),
    f"{socket.gethostname().partition('.')[0]}.local:8000",
)


async def answered(app: Any, path: str, *hosts: str, method: str = "GET", **options: Any) -> httpx2.Response:
    """The application's answer to a request with only these `Host` headers."""
    messages: list[Any] = []

    unread = iter((True,))

    async def receive() -> dict[str, Any]:
        if not next(unread, False):
            await asyncio.Event().wait()
        return {"type": "http.request", "body": options.get("body", b""), "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"host", host.encode("latin-1")) for host in hosts] + options.get("headers", [])
    await app(http_scope(method, path, headers), receive, send)
    start = messages[0]
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return httpx2.Response(start["status"], headers=start["headers"], content=body)


@pytest.mark.parametrize("host", FOREIGN, ids=lambda host: host[:20])
def test_other_names_are_refused(host: str) -> None:
    assert not AllowedHosts([]).allows(host)


@pytest.mark.parametrize("host", OWN)
def test_what_no_site_can_own_is_allowed(host: str) -> None:
    assert AllowedHosts([]).allows(host)


@pytest.mark.parametrize(
    ("listed", "allowed", "refused"),
    [
        (["chat.example.com"], ["chat.example.com", "Chat.Example.com:443"], ["example.com", "a.chat.example.com"]),
        (["Chat.example.com"], ["chat.example.com"], ["xchat.example.com"]),
        (
            ["*.example.com"],
            ["a.example.com", "a.b.example.com"],
            ["example.com", "badexample.com", "example.com.evil"],
        ),
        (["*"], ["evil.example", "a b", ""], []),
    ],
)
def test_listed_names(listed: Sequence[str], allowed: Sequence[str], refused: Sequence[str]) -> None:
    hosts = AllowedHosts(listed)
    assert all(map(hosts.allows, allowed))
    assert not any(map(hosts.allows, refused))


@pytest.fixture(scope="module")
def whole() -> Any:
    return http_app(never)


PATHS = (
    "/",
    "/c/abc",
    "/v1/models",
    "/v1/workers",
    "/v1/unknown",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/ui/a.js",
    "/ui/manifest.webmanifest",
    "/unknown",
)


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_refuses_a_foreign_name(whole: Any, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = await answered(whole, path, "evil.example:8000", method=method)
        assert answer.status_code == 421, (method, path)
        error = answer.json()["error"]
        assert error["code"] == "foreign_host"
        assert "'evil.example'" in error["message"]
        assert "ingress.allowed_hosts" in error["message"]
        assert answer.headers["content-type"] == "application/json"


async def test_what_is_no_name_is_not_repeated(whole: Any) -> None:
    for host in ("<script>alert(1)</script>.x", "a.\x7f\xe4\xb8", "x." * 5000):
        answer = await answered(whole, "/v1/models", host)
        assert answer.status_code == 421
        assert len(answer.content) < 500
        assert host[:10] not in answer.text


async def test_one_foreign_name_among_several_is_enough(whole: Any) -> None:
    assert (await answered(whole, "/v1/models", "localhost", "evil.example")).status_code == 421
    assert (await answered(whole, "/v1/models", "evil.example", "localhost")).status_code == 421


async def test_what_comes_from_no_browser_is_answered(whole: Any) -> None:
    assert (await answered(whole, "/v1/models")).status_code == 200
    assert (await answered(whole, "/v1/models", "")).status_code == 200
    for path in ("/health", "/livez", "/readyz"):
        assert (await answered(whole, path, "probe.example")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1/models", "/docs", "/metrics"])
async def test_own_names_are_answered(whole: Any, path: str) -> None:
    for host in ("localhost:8000", "127.0.0.1:8000"):
        assert (await answered(whole, path, host)).status_code in (200, 503, 404), (
            path
        )  # 503: the page may not be built


async def test_a_refused_prompt_reaches_no_worker_and_a_listed_name_does() -> None:
    body = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 2}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    worker = FakeWorker(lambda _: deltas([1]))
    app = http_app(worker.generate, allowed_hosts=("chat.example.com",))

    async def status(host: str) -> int:
        answer = await answered(app, "/v1/completions", host, method="POST", body=body, headers=headers)
        return answer.status_code

    assert await status("evil.example") == 421
    assert not worker.requests
    assert await status("chat.example.com") == 200
    assert len(worker.requests) == 1


async def test_where_every_request_needs_a_key_all_names_are_allowed_unless_some_are_listed() -> None:
    key = [(b"authorization", b"Bearer k")]
    keyed = http_app(never, api_keys=("k",))
    assert (await answered(keyed, "/v1/models", "chat.example.com", headers=key)).status_code == 200
    assert (await answered(keyed, "/v1/models", "evil.example")).status_code == 401
    strict = http_app(never, api_keys=("k",), allowed_hosts=())
    assert (await answered(strict, "/v1/models", "chat.example.com", headers=key)).status_code == 421


async def test_refusals_are_counted(whole: Any) -> None:
    await answered(whole, "/v1/models", "evil.example")
    series = (await answered(whole, "/metrics", "localhost")).text
    assert re.search(r'redoubt_http_requests_total{[^}]*route="any",status="421"', series)
