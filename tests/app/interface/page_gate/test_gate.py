"""The gate before Gradio, on a real socket: hostile calls, and sessions that hold events they do not read."""

import asyncio
import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import gradio
import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Mount, Route

from app.interface.page_gate.mount import mount_page
from tests.fake_v1 import FakeV1, running

SECRET = "sk-secret-marker-0123456789"
ANSWER, ANSWER_AGAIN, NEW_CHAT, MODELS = 0, 1, 6, 7
"""The page's functions, by Gradio's numbers."""
MANY_WORDS = [f"word{i} " for i in range(3000)]
ASKED: list[Any] = [SECRET, [], "fake-model", "", 0, 0.9, 64, "", SECRET]


def wait_until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def page() -> Iterator[FakeV1]:
    with running(FakeV1(), mount_page) as fake:
        yield fake


def endless() -> FakeV1:
    return FakeV1(words=MANY_WORDS, pause_s=0.01)


def join(fake: FakeV1, session: str, data: Any = None, function: int = ANSWER) -> httpx.Response:
    body = {"data": ASKED if data is None else data, "fn_index": function, "session_hash": session}
    return httpx.post(f"{fake.url}/gradio_api/queue/join", json=body, timeout=10)


CALLS: dict[str, tuple[str, Any]] = {
    "too few values": ("queue/join", {"data": [SECRET], "fn_index": ANSWER, "session_hash": "a1"}),
    "too many values": ("queue/join", {"data": [*ASKED, SECRET], "fn_index": ANSWER, "session_hash": "a2"}),
    "a number for the history": (
        "queue/join",
        {"data": [SECRET, 5, *ASKED[2:]], "fn_index": ANSWER, "session_hash": "a3"},
    ),
    "a history of another shape": (
        "queue/join",
        {"data": [SECRET, [{"role": SECRET}], *ASKED[2:]], "fn_index": ANSWER, "session_hash": "a4"},
    ),
    "a text for a number": (
        "queue/join",
        {"data": [*ASKED[:4], SECRET, *ASKED[5:]], "fn_index": ANSWER, "session_hash": "a5"},
    ),
    "a file in the history": (
        "queue/join",
        {
            "data": [
                SECRET,
                [{"role": "user", "content": [{"type": "file", "file": {"path": SECRET}}]}],
                *ASKED[2:],
            ],
            "fn_index": ANSWER,
            "session_hash": "a6",
        },
    ),
    "no such function": ("queue/join", {"data": [SECRET], "fn_index": 99, "session_hash": "a7"}),
    "no session": ("queue/join", {"data": [SECRET], "fn_index": MODELS}),
    "a session that is a text": ("queue/join", {"data": [SECRET], "fn_index": MODELS, "session_hash": SECRET}),
    "a queued function at once": ("run/predict", {"data": [SECRET], "fn_index": MODELS, "session_hash": "a8"}),
    "too few values at once": ("run/predict", {"data": [SECRET], "fn_index": NEW_CHAT, "session_hash": "a9"}),
    "a call by name": ("call/answer", {"data": [SECRET]}),
    "another call by name": ("api/answer", {"data": [SECRET]}),
    "a call with names": ("call/v2/answer", {"question": SECRET}),
    "a component's server": (
        "component_server",
        {"data": SECRET, "component_id": 14, "fn_name": SECRET, "session_hash": "b"},
    ),
    "a cancel": ("cancel", {"session_hash": SECRET, "fn_index": SECRET, "event_id": SECRET}),
    "a reset": ("reset", {"event_id": [SECRET]}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_malformed_call_is_refused_and_nothing_of_it_is_logged(
    page: FakeV1,
    name: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    caplog.set_level(logging.DEBUG)
    path, body = CALLS[name]
    answer = httpx.post(f"{page.url}/gradio_api/{path}", json=body, timeout=10)
    time.sleep(0.3)  # Gradio's queue looks for events every 50 ms
    printed = capfd.readouterr()
    written = [printed.out, printed.err, caplog.text, *(str(warning.message) for warning in recwarn)]
    assert not any(SECRET in text for text in written), "\n".join(written)[:2000]
    assert answer.status_code in (400, 404), answer.text[:500]
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


def test_an_error_for_the_user_is_not_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Gradio prints the value of a menu that is none of its choices."""
    with running(FakeV1(), mount_page) as fake:
        assert join(fake, "c", [ASKED[0], [], SECRET, *ASKED[3:]]).status_code == 200
        with httpx.stream("GET", f"{fake.url}/gradio_api/queue/data?session_hash=c", timeout=10) as stream:
            assert "process_completed" in stream.read().decode()
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err + caplog.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_sites_cannot_call_without_asking(page: FakeV1, content_type: str) -> None:
    """Browsers send these types across sites without asking first."""
    body = json.dumps({"data": ASKED, "fn_index": ANSWER, "session_hash": "d"})
    headers = {"Content-Type": content_type}
    answer = httpx.post(f"{page.url}/gradio_api/queue/join", content=body, headers=headers, timeout=10)
    assert answer.status_code == 415


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
    ("GET", "/gradio_api/queue/data"),
    ("POST", "/gradio_api/queue/join"),
    ("POST", "/gradio_api/run/{api_name}"),
    ("POST", "/gradio_api/cancel"),
    ("POST", "/gradio_api/reset"),
}


async def gradios_routes() -> list[tuple[str, str]]:
    """What Gradio would answer without the gate. Outside an event loop it makes some that it never closes."""
    with gradio.Blocks() as blocks:
        gradio.Textbox()
    app = FastAPI()
    gradio.mount_gradio_app(app, blocks, path="/")
    (mount,) = (route for route in app.router.routes if isinstance(route, Mount))
    assert isinstance(mount.app, FastAPI)
    routes = [*mount.app.routes]
    for included in mount.app.routes:
        routes += getattr(included, "original_router", APIRouter()).routes
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
        with httpx.stream(method, page.url + path, timeout=5) as answer:  # a heartbeat would have no end
            assert answer.status_code == 404, (method, path)
            assert json.loads(answer.read() or b'{"error": {"code": "unknown_url"}}')["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("size", [0, 1, 2])
def test_no_file_is_taken(page: FakeV1, size: int) -> None:
    files = {"files": ("a.txt", io.BytesIO(b"x" * size))}
    assert httpx.post(f"{page.url}/gradio_api/upload", files=files, timeout=10).status_code == 404


def test_a_stream_without_a_call_is_refused(page: FakeV1) -> None:
    assert httpx.get(f"{page.url}/gradio_api/queue/data?session_hash=f", timeout=5).status_code == 404


def test_a_heartbeat_holds_nothing(page: FakeV1) -> None:
    assert httpx.get(f"{page.url}/gradio_api/heartbeat/x", timeout=2).status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/", "/theme.css", "/gradio_api/queue/join", "/gradio_api/queue/data", "/gradio_api/x"]
)
@pytest.mark.parametrize("host", ["service.example", "localhost"])
def test_no_other_site_may_read_an_answer(page: FakeV1, method: str, path: str, host: str) -> None:
    headers = {"Host": host, "Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    with httpx.stream(method, page.url + path, headers=headers, timeout=5) as answer:
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("name", ["X-Forwarded-Host", "X-Gradio-Server", "Forwarded", "X-Forwarded-Proto"])
def test_forwarded_headers_do_not_move_the_page(page: FakeV1, name: str) -> None:
    value = "https" if name == "X-Forwarded-Proto" else "http://evil.example"
    text = httpx.get(page.url + "/", headers={name: value}, timeout=10).text
    assert "evil.example" not in text
    assert f'"root":"{page.url}"' in text


def test_events_without_a_reader_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.page_gate.events.ABANDONED_AFTER_S", 3.0, raising=False)
    with running(endless(), mount_page) as fake:
        for number in range(5):
            assert join(fake, f"s{number}", [*ASKED[:2], None, *ASKED[3:]]).status_code == 200
        wait_until(lambda: len(fake.asked) == 5)
        wait_until(lambda: fake.cut_off == 5)


def test_events_with_a_reader_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.page_gate.events.ABANDONED_AFTER_S", 2.0, raising=False)
    with running(endless(), mount_page) as fake:
        assert join(fake, "s", [*ASKED[:2], None, *ASKED[3:]]).status_code == 200
        with httpx.stream("GET", f"{fake.url}/gradio_api/queue/data?session_hash=s", timeout=10) as stream:
            lines = stream.iter_lines()
            begun = time.monotonic()
            while time.monotonic() < begun + 4:
                next(lines)
            assert fake.cut_off == 0
        wait_until(lambda: fake.cut_off == 1)


def test_a_session_has_few_events() -> None:
    with running(endless(), mount_page) as fake:
        statuses = [join(fake, "s").status_code for _ in range(6)]
        assert statuses == [200] * 4 + [503] * 2
        assert join(fake, "t").status_code == 200


def test_all_sessions_together_have_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.page_gate.events.MOST_EVENTS", 3)
    monkeypatch.setattr("app.interface.page_gate.events.ABANDONED_AFTER_S", 3.0)
    with running(endless(), mount_page) as fake:
        answers = [join(fake, f"s{i}") for i in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [503]
        assert answers[3].headers["retry-after"] == "1"
        wait_until(lambda: join(fake, "s10").status_code == 200)


def small(app: FastAPI) -> None:
    mount_page(app, max_open_requests=8)


def test_streams_hold_a_quarter_of_the_places() -> None:
    with running(endless(), small) as fake, ExitStack() as streams:
        statuses = []
        for number in range(3):
            assert join(fake, f"s{number}", [*ASKED[:2], None, *ASKED[3:]]).status_code == 200
            url = f"{fake.url}/gradio_api/queue/data?session_hash=s{number}"
            statuses.append(streams.enter_context(httpx.stream("GET", url, timeout=10)).status_code)
        assert statuses == [200, 200, 503]
        assert httpx.get(fake.url + "/theme.css", timeout=5).status_code == 200
        assert httpx.get(fake.url + "/v1/models", timeout=5).status_code == 200


async def test_the_whole_page_holds_half_of_the_places() -> None:
    """Also where its files are not read: Gradio never comes to an end here."""
    from app.interface.page.page import build_page
    from app.interface.page_gate.gate import PageGate

    async def stuck(*_: Any) -> None:
        await asyncio.Event().wait()

    gate = PageGate(stuck, build_page(), max_open_requests=8, max_body_bytes=1024, retry_after_s=1)
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


def test_a_conversation_of_any_size_is_not_taken(page: FakeV1) -> None:
    assert join(page, "e", ["x" * (9 << 20), *ASKED[1:]]).status_code == 413
