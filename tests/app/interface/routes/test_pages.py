"""The pages to log in and about one's account: which files are served, and how."""

import logging
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from app.interface.page_gate.policy import PagePolicy
from app.interface.routes.pages import NOT_BUILT, PageFiles
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.accounts.here import Site
from tests.app.service import http_app, http_client


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "login.html").write_text("<!doctype html>")
    (folder / "assets/login-abc.js").write_text("let a;")
    (folder / "assets/login-abc.css").write_text("a {}")
    (folder / ".built").touch()
    (tmp_path / "secret").write_text("a secret")
    return folder


def client_of(folder: Path) -> httpx2.AsyncClient:
    pages = PageFiles(folder)
    app = FastAPI()
    app.add_api_route("/login", pages.login)
    app.add_middleware(PagePolicy)
    return http_client(app)


async def test_a_document_has_a_strict_policy_that_nothing_replaces(built: Path) -> None:
    async with client_of(built) as client:
        answer = await client.get("/login")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["content-type"].startswith("text/html")
        again = await client.get("/login", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


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
        "assets",
    ):
        answer = await site.client.get(f"/ui/{path}")
        assert answer.status_code == 404, path
        assert "a secret" not in answer.text
    assert (await site.client.post("/login")).status_code == 405
    await site.close()


async def test_pages_that_are_not_built_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with client_of(tmp_path / "none") as client:
            answer = await client.get("/login")
    assert (answer.status_code, answer.text) == (503, NOT_BUILT + "\n")
    assert NOT_BUILT in caplog.text


async def test_without_accounts_there_are_no_such_pages(make_app: Callable[[], FastAPI]) -> None:
    async with http_client(make_app()) as client:
        for path in ("/login", "/account", "/operator", "/v1/admin/overview", "/ui/assets/login-abc.js"):
            assert (await client.get(path)).status_code == 404


@pytest.fixture
def make_app() -> Callable[[], FastAPI]:
    return lambda: http_app(FakeWorker(lambda _: deltas([5])).generate)
