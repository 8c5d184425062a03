"""The chat's web page of a service with accounts: who gets it, and as which user it sends requests."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, expect

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.browser import WAIT_MS, ask
from tests.fake_v1 import FakeV1, running

COOKIE = {"name": "ann", "password": PASSWORD, "cookie": True}


class Served(FakeV1):
    """The service in place of the fake `/v1`."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site

    def app(self) -> FastAPI:
        return self._site.app


@pytest.fixture(params=[False])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5, 6])), guests=request.param)
    site.add("ann")
    yield site
    site.service.close()


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    with (
        running(Served(site)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


def test_only_a_session_gets_the_page(client: httpx.Client) -> None:
    for cookie in ("", "redoubt_session=rdbs_wrong"):
        answer = client.get("/", headers={"Cookie": cookie})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        named = client.get("/c/conv_1", headers={"Cookie": cookie})
        assert (named.status_code, named.headers["location"]) == (303, "/login?next=/c/conv_1")
    client.post("/v1/auth/login", json=COOKIE)
    answer = client.get("/")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    client.post("/v1/auth/logout", json={}, headers={"Origin": str(client.base_url)})
    assert client.get("/").status_code == 303


@pytest.mark.parametrize("site", [True], indirect=True)
def test_guests_get_the_page_where_they_are_served(client: httpx.Client) -> None:
    assert client.get("/").status_code == 200


@pytest.mark.browser
def test_a_user_chats_with_the_session(site: Site, client: httpx.Client, browser: Browser) -> None:
    page = browser.new_page(base_url=str(client.base_url))
    page.set_default_timeout(WAIT_MS)
    page.goto("/")
    page.wait_for_url(re.compile("/login$"))
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.locator("#message").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Longest answer, in tokens").fill("8")  # the model is tiny
    page.get_by_role("button", name="Done").click()
    ask(page, "hi")
    expect(page.locator(".answer .tools")).to_be_visible()
    assert "admit" in site.accounts.calls
    page.get_by_role("link", name="ann").wait_for()
    page.close()
