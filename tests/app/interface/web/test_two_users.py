"""One browser and several sessions: signing out, logging in in another tab, and closing a tab."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from app.accounts import tables
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.interface.web.test_session import Served
from tests.browser import WAIT_MS, ask
from tests.fake_v1 import running

pytestmark = pytest.mark.browser


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5, 6])))
    site.add("ann")
    site.add("root", role="admin")
    yield site
    site.service.close()


@pytest.fixture
def context(site: Site, browser: Browser) -> Iterator[BrowserContext]:
    with running(Served(site)) as served:
        context = browser.new_context(base_url=served.url, viewport={"width": 1100, "height": 800})
        context.set_default_timeout(WAIT_MS)
        yield context
        context.close()


@pytest.fixture
def ann(context: BrowserContext) -> Page:
    """Ann's tab, with one chat."""
    page = context.new_page()
    page.goto("/login")
    log_in(page, "ann")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Longest answer, in tokens").fill("4")
    page.get_by_role("button", name="Done").click()
    ask(page, "hi")
    expect(page.locator(".answer .tools")).to_be_visible()
    return page


def log_in(page: Page, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()


def stored(site: Site) -> int:
    with site.inside.store.transaction() as connection:
        return len(connection.execute(tables.conversations.select()).all())


def delete_chat(page: Page) -> None:
    page.get_by_label("Menu of hi").click()
    page.get_by_role("button", name="Delete").click()


def test_what_was_deleted_is_gone_after_signing_out(site: Site, ann: Page) -> None:
    delete_chat(ann)
    expect(ann.get_by_role("button", name="Undo")).to_be_visible()
    ann.get_by_role("button", name="Sign out").click()
    ann.wait_for_url(re.compile("/login$"))
    assert stored(site) == 0
    log_in(ann, "ann")
    expect(ann.get_by_text("Your chats will be here.")).to_be_visible()


def test_what_was_deleted_is_gone_when_the_tab_is_killed(site: Site, ann: Page, context: BrowserContext) -> None:
    other = context.new_page()
    other.goto(ann.url)
    expect(other.locator(".bubble")).to_have_text(["hi"])
    with ann.expect_response(re.compile("undo=true")):
        delete_chat(ann)
    expect(other.get_by_text("This chat was deleted in another tab.")).to_be_visible()
    ann.close()  # runs no pagehide
    expect(other.get_by_text("Your chats will be here.")).to_be_visible()
    other.reload()
    expect(other.get_by_text("Your chats will be here.")).to_be_visible()


def test_a_tab_of_another_user_writes_nothing(site: Site, ann: Page, context: BrowserContext) -> None:
    """Ann's tab is cleared although it was not notified."""
    ann.locator("#message").fill("a draft of ann's")
    answer = ann.evaluate("fetch('/v1/auth/session').then(answer => answer.json())")
    other = context.new_page()
    other.goto("/login")
    log_in(other, "root")
    # Ann's tab was notified: her titles and texts are gone.
    ann.wait_for_url(re.compile(r"/login\?ended=yes&next=%2Fc%2Fconv_"))
    expect(ann.get_by_text("You were signed out. Log in.")).to_be_visible()
    # Requests of a tab that was not notified are refused.
    status = ann.evaluate(
        """user => fetch("/v1/conversations", {method: "POST", body: "{}",
            headers: {"Content-Type": "application/json", "X-Redoubt-User": user}}).then(answer => answer.status)""",
        answer["user_id"],
    )
    assert (status, stored(site)) == (409, 1)
    # And the draft is hers alone.
    ann.goto("/")
    expect(ann.get_by_role("link", name="root", exact=True)).to_be_visible()
    expect(ann.locator("#message")).to_have_value("")
    assert "draft of ann" not in ann.evaluate("JSON.stringify(sessionStorage)")


def test_who_was_signed_out_logs_in_and_finds_the_draft(site: Site, ann: Page) -> None:
    address = ann.url
    ann.locator("#message").fill("a question that nobody takes")
    ann.context.clear_cookies()
    ann.keyboard.press("Enter")
    expect(ann.get_by_text("You were signed out. Log in.")).to_be_visible()
    assert ann.get_by_text("API key").count() == 0
    log_in(ann, "ann")
    expect(ann).to_have_url(address)
    expect(ann.locator("#message")).to_have_value("a question that nobody takes")
    expect(ann.locator(".bubble")).to_have_text(["hi"])


def test_a_question_after_the_session_has_ended_stays_a_draft(ann: Page) -> None:
    """The tab knows that the session is over, and the login page has not come yet."""
    ann.route(re.compile(r"/login\?"), lambda route: route.fulfill(status=204))  # the browser stays where it is
    ann.context.clear_cookies()
    with ann.expect_request(re.compile(r"/login\?")):
        ann.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    ask(ann, "asked too late")
    ann.unroute_all()
    ann.goto("/login?next=%2F")
    log_in(ann, "ann")
    expect(ann.locator("#message")).to_have_value("asked too late")


def test_every_request_says_whose_it_is(ann: Page) -> None:
    """Requests of all tabs but the first one, which asks who it is."""
    silent: list[str] = []

    def look(request: Request) -> None:
        if "/v1/" in request.url and "x-redoubt-user" not in request.headers:
            silent.append(request.url)

    ann.on("request", look)
    ask(ann, "no")
    expect(ann.locator(".answer .tools")).to_have_count(2)
    ann.get_by_label("Menu of hi").click()
    with ann.expect_download():
        ann.get_by_role("button", name="Export as text").click()
    ann.goto("/account")
    with ann.expect_download():
        ann.get_by_role("button", name="Export hi as JSON").click()
    expect(ann.get_by_role("region", name="Sessions").get_by_text("(this one)")).to_be_visible()
    ann.goto("/operator")
    expect(ann.get_by_text("This page is for administrators only.")).to_be_visible()
    assert {url.partition("/v1")[2] for url in silent} == {"/auth/session"}
