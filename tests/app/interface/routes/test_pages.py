"""The web pages: which files are served, how, and to whom."""

import logging
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from app.interface.routes.chat_page import ChatPage
from app.interface.routes.pages import NOT_BUILT, PageFiles
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import Site
from tests.app.service import http_app, http_client


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "login.html").write_text("<!doctype html>")
    (folder / "assets/login-abc.js").write_text("let a;")
    (folder / "assets/login-abc.css").write_text("a {}")
    (folder / "icon.svg").write_text("<svg/>")
    for name in ("chat.html", "chat-accounts.html", "assets/chat-abc.js"):
        for ending in ("", ".br", ".gz"):
            (folder / f"{name}{ending}").write_text(f"{name}{ending}")
    (folder / ".built").touch()
    (tmp_path / "secret").write_text("a secret")
    return folder


def client_of(folder: Path) -> httpx2.AsyncClient:
    pages = PageFiles(folder)
    app = FastAPI()
    app.add_api_route("/login", pages.login)
    chat = ChatPage(pages, None)
    app.add_api_route("/", chat.chat)
    app.add_api_route("/c/{name}", chat.conversation)
    app.add_api_route("/ui/{path:path}", pages.file)
    return http_client(app)


@pytest.mark.parametrize("path", ["/", "/c/conv_1", "/login"])
async def test_a_document_has_a_strict_policy_and_is_asked_for_anew(built: Path, path: str) -> None:
    async with client_of(built) as client:
        client.headers["Accept-Encoding"] = "identity"
        answer = await client.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["content-type"].startswith("text/html")
        for known in (answer.headers["etag"], f'"other", W/{answer.headers["etag"]}'):
            again = await client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("accepted", "coding", "ending"),
    [
        ("gzip, deflate, br, zstd", "br", ".br"),
        ("GZIP;q=0.5", "gzip", ".gz"),
        ("br;q=0, gzip", "gzip", ".gz"),
        ("identity", None, ""),
        ("", None, ""),
    ],
)
async def test_what_was_compressed_goes_to_those_who_take_it(
    built: Path, accepted: str, coding: str | None, ending: str
) -> None:
    async with client_of(built) as client:
        for path, name in (("/", "chat.html"), ("/ui/assets/chat-abc.js", "assets/chat-abc.js")):
            async with client.stream("GET", path, headers={"Accept-Encoding": accepted}) as answer:
                raw = b"".join([part async for part in answer.aiter_raw()])
            assert (answer.headers.get("content-encoding"), raw.decode()) == (coding, name + ending)
            assert answer.headers["vary"] == "Accept-Encoding"
            other = await client.get(path, headers={"Accept-Encoding": "", "If-None-Match": answer.headers["etag"]})
            assert other.status_code == (200 if coding else 304)


async def test_files_have_their_types_and_stay(built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("app.interface.routes.pages.FOLDER", built)
    worker = FakeWorker(lambda _: deltas([5]))
    site = Site(str(tmp_path / "accounts.db"), worker)
    for name, kind in (("js", "text/javascript"), ("css", "text/css")):
        answer = await site.client.get(f"/ui/assets/login-abc.{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert "immutable" in answer.headers["cache-control"]
    for path in (
        "assets/../../secret",
        "assets/%2e%2e/%2e%2e/secret",
        "%2e%2e/secret",
        ".built",
        "login.html",
        "login.html.br",
        "assets/chat-abc.js.gz",
        "assets",
        "../c/a-b",
        f"../c/{'a' * 81}",
        "../c/",
    ):
        answer = await site.client.get(f"/ui/{path}")
        assert answer.status_code == 404, path
        assert "a secret" not in answer.text
    assert (await site.client.get("/ui/icon.svg")).headers["cache-control"] == "no-cache"
    for path in ("/login", "/"):
        assert (await site.client.post(path)).status_code == 405
    await site.close()


async def test_pages_that_are_not_built_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with client_of(tmp_path / "none") as client:
            for path in ("/login", "/"):
                answer = await client.get(path)
                assert (answer.status_code, answer.text) == (503, NOT_BUILT + "\n")
    assert NOT_BUILT in caplog.text


async def test_without_accounts_there_are_no_such_pages(make_app: Callable[[], FastAPI]) -> None:
    async with http_client(make_app()) as client:
        for path in ("/login", "/account", "/operator", "/v1/admin/overview", "/ui/assets/login-abc.js"):
            assert (await client.get(path)).status_code == 404


@pytest.fixture
def make_app() -> Callable[[], FastAPI]:
    return lambda: http_app(FakeWorker(lambda _: deltas([5])).generate)
