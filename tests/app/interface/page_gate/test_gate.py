"""The gate before Gradio, on a real socket: what it lets through, and the policy of the page."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gradio
import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount, Route

from app.interface.page_gate.gate import PageGate
from app.interface.page_gate.mount import mount_page
from app.interface.routes.pages import Built, built
from tests.fake_v1 import FakeV1, running

SECRET = "sk-secret-marker-0123456789"


@pytest.fixture(scope="module")
def page() -> Iterator[FakeV1]:
    with running(FakeV1(), mount_page) as fake:
        yield fake


CALLS = ("queue/join", "run/predict", "call/answer", "api/answer", "component_server", "cancel", "reset", "upload")


@pytest.mark.parametrize("path", CALLS)
def test_a_call_is_refused_and_nothing_of_it_is_logged(
    page: FakeV1,
    path: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"data": [SECRET], "fn_index": 0, "session_hash": SECRET}
    answer = httpx.post(f"{page.url}/gradio_api/{path}", json=body, timeout=60)
    printed = capfd.readouterr()
    written = [printed.out, printed.err, caplog.text, *(str(warning.message) for warning in recwarn)]
    assert not any(SECRET in text for text in written), "\n".join(written)[:2000]
    assert answer.status_code == 404, answer.text[:500]
    message = answer.json()["error"]["message"]
    assert message
    assert "\n" not in message
    assert SECRET not in answer.text


def test_an_error_of_ours_is_logged_without_values(caplog: pytest.LogCaptureFixture, page: FakeV1) -> None:
    for module in (gradio.queueing, gradio.routes):
        try:
            raise ValueError(SECRET)
        except ValueError:
            vars(module)["traceback"].print_exc()
    assert caplog.text.count("the page failed: ValueError") == 2
    assert "test_gate.py" in caplog.text
    assert caplog.text.count(SECRET) == 0


ALLOWED = {
    ("GET", "/"),
    ("HEAD", "/"),
    ("GET", "/assets/{path:path}"),
    ("GET", "/static/{path:path}"),
    ("GET", "/favicon.ico"),
    ("GET", "/manifest.json"),
    ("GET", "/robots.txt"),
    ("GET", "/theme.css"),
    ("GET", "/gradio_api/app_id"),
}


async def gradios_routes() -> list[tuple[str, str]]:
    """What Gradio would answer without the gate. Outside an event loop it makes some that it never closes."""
    with gradio.Blocks() as blocks:
        gradio.Textbox()
    app = FastAPI()
    gradio.mount_gradio_app(app, blocks, path="/")
    (mount,) = (route for route in app.router.routes if isinstance(route, Mount))
    assert isinstance(mount.app, FastAPI)
    routes: list[object] = []
    open_routers = [mount.app.routes]
    while open_routers:
        for route in open_routers.pop():
            inner = getattr(route, "original_router", None)
            if isinstance(inner, APIRouter):
                open_routers.append(inner.routes)
            else:
                routes.append(route)
    assert {type(route) for route in routes} <= {Route, APIRoute}, "another kind of route would not be asked below"
    found = {(method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()}
    assert len(found) > 50
    return sorted(found)


def test_only_the_routes_that_the_page_needs_are_there(page: FakeV1) -> None:
    with ThreadPoolExecutor(max_workers=1) as thread_of_its_own:
        routes = thread_of_its_own.submit(asyncio.run, gradios_routes()).result()
    assert set(routes) >= ALLOWED
    for method, pattern in routes:
        if (method, pattern) in ALLOWED or (method == "HEAD" and ("GET", pattern) in ALLOWED):
            continue
        if pattern in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"):  # FastAPI's, and the fake has them
            continue
        path = pattern.replace(":path}", "}")
        while "{" in path:
            path = path[: path.index("{")] + "x" + path[path.index("}") + 1 :]
        with httpx.stream(method, page.url + path, timeout=60) as answer:  # a heartbeat would have no end
            assert answer.status_code == 404, (method, path)
            assert json.loads(answer.read() or b'{"error": {"code": "unknown_url"}}')["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("size", [0, 1, 2])
def test_no_file_is_taken(page: FakeV1, size: int) -> None:
    files = {"files": ("a.txt", io.BytesIO(b"x" * size))}
    assert httpx.post(f"{page.url}/gradio_api/upload", files=files, timeout=60).status_code == 404


def test_a_stream_without_a_call_is_refused(page: FakeV1) -> None:
    assert httpx.get(f"{page.url}/gradio_api/queue/data?session_hash=f", timeout=60).status_code == 404


def test_a_heartbeat_holds_nothing(page: FakeV1) -> None:
    assert httpx.get(f"{page.url}/gradio_api/heartbeat/x", timeout=60).status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/", "/theme.css", "/gradio_api/queue/join", "/gradio_api/queue/data", "/gradio_api/x"]
)
@pytest.mark.parametrize("host", ["service.example", "localhost"])
def test_no_other_site_may_read_an_answer(page: FakeV1, method: str, path: str, host: str) -> None:
    headers = {"Host": host, "Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    with httpx.stream(method, page.url + path, headers=headers, timeout=60) as answer:
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("name", ["X-Forwarded-Host", "X-Gradio-Server", "Forwarded", "X-Forwarded-Proto"])
def test_forwarded_headers_do_not_move_the_page(page: FakeV1, name: str) -> None:
    value = "https" if name == "X-Forwarded-Proto" else "http://evil.example"
    text = httpx.get(page.url + "/", headers={name: value}, timeout=60).text
    assert "evil.example" not in text
    assert f'"root":"{page.url}"' in text


async def test_the_whole_page_holds_half_of_the_places() -> None:
    """Also where its files are not read: Gradio never comes to an end here."""

    async def stuck(*_: Any) -> None:
        await asyncio.Event().wait()

    gate = PageGate(stuck, Built([], []), max_open_requests=8, retry_after_s=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://test") as client:
        held = [asyncio.create_task(client.get("/")) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert (await client.get("/")).status_code == 503
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        again = asyncio.create_task(client.get("/"))
        await asyncio.sleep(0.1)
        assert not again.done()
        again.cancel()


def test_the_policy_allows_no_script_that_gradio_did_not_write(page: FakeV1) -> None:
    answer = httpx.get(page.url + "/", timeout=60)
    (scripts,) = (part for part in answer.headers["content-security-policy"].split("; ") if "script-src" in part)
    assert "unsafe" not in scripts
    assert scripts.count("'sha256-") == len(re.findall(r"<script(?![^>]* src=)", answer.text)) > 0
    assert answer.text.count("/ui/assets/main-") == 2


def test_a_page_that_was_not_built_says_how_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert built("src/chat/main.tsx", tmp_path) is None
    monkeypatch.setattr("app.interface.page_gate.mount.built", lambda _: None)
    with running(FakeV1(), mount_page) as fake:
        answer = httpx.get(fake.url + "/", timeout=60)
        assert (answer.status_code, "make page" in answer.text) == (503, True)
