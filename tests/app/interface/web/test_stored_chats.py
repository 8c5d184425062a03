"""A user's chat in a browser: stored by real accounts, over a fake worker."""

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.interface.web.test_session import Served
from tests.browser import WAIT_MS, Watch, ask
from tests.fake_v1 import running

pytestmark = pytest.mark.browser


@pytest.fixture(params=[None])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Its param: the number of tokens after which an answer hangs."""
    worker = FakeWorker(lambda _: deltas([5, 6]), hang_after=request.param)
    site = Site(str(tmp_path / "accounts.db"), worker)
    site.add("ann")
    yield site
    site.service.close()


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    """Logged in, with short answers, since the model is tiny."""
    with running(Served(site)) as served:
        page = browser.new_context(base_url=served.url, viewport={"width": 1100, "height": 800}).new_page()
        page.context.set_default_timeout(WAIT_MS)
        page.goto("/login")
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Longest answer, in tokens").fill("4")
        page.get_by_role("button", name="Done").click()
        yield page
        page.context.close()


def answered(page: Page, question: str, count: int) -> None:
    ask(page, question)
    expect(page.locator(".answer .tools")).to_have_count(count)


def stored(page: Page) -> list[dict[str, Any]]:
    """The messages of the only conversation."""
    (one,) = page.request.get("/v1/conversations").json()["data"]
    items = page.request.get(f"/v1/conversations/{one['id']}/items?order=asc").json()["data"]
    return [{"role": item["role"], "text": item["content"][0]["text"]} for item in items]


def test_a_conversation_is_kept_under_its_address(page: Page) -> None:
    answered(page, "hi", 1)
    page.wait_for_url(re.compile(r"/c/conv_\w+$"))
    address = page.url
    answered(page, "no", 2)
    assert [one["text"] for one in stored(page) if one["role"] == "user"] == ["hi", "no"]
    page.reload()
    expect(page).to_have_url(address)
    expect(page.locator(".bubble")).to_have_text(["hi", "no"])
    assert not re.search(r"\bhi\b", page.evaluate("JSON.stringify(sessionStorage)"))
    page.get_by_role("navigation").get_by_role("button", name="New chat").click()
    expect(page.locator(".bubble")).to_have_count(0)
    page.go_back()
    expect(page.locator(".bubble")).to_have_text(["hi", "no"])


def test_all_versions_are_kept(page: Page) -> None:
    answered(page, "hi", 1)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the question").fill("no")
    page.keyboard.press("Enter")
    expect(page.locator(".question .versions")).to_have_text("2/2")
    expect(page.locator(".answer .tools")).to_be_visible()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".answer .versions")).to_have_text("2/2")
    expect(page.locator(".answer .tools")).to_be_visible()
    answered(page, "hi", 2)
    page.reload()
    expect(page.locator(".bubble")).to_have_text(["no", "hi"])
    expect(page.locator(".answer .versions")).to_have_text(["2/2"])
    page.locator(".question").first.get_by_role("button", name="Previous version").click()
    expect(page.locator(".bubble")).to_have_text(["hi"])
    answered(page, "no", 2)  # goes on from there
    page.reload()
    expect(page.locator(".bubble")).to_have_text(["hi", "no"])
    assert [one["role"] for one in stored(page)] == ["user", "assistant"] * 5


@pytest.mark.parametrize("site", [1], indirect=True)
def test_a_stopped_answer_is_kept_as_far_as_it_came(page: Page) -> None:
    for count, question in enumerate(("hi", "no", "hi"), 1):
        ask(page, question)
        expect(page.locator(".answer[data-status=writing]")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".answer[data-status=stopped]")).to_have_count(count)
    assert [one["role"] for one in stored(page)][:4] == ["user", "assistant"] * 2
    assert [one["text"] for one in stored(page)][:4] == ["hi", "#", "no", "#"]


@pytest.fixture
def slow_site(tmp_path: Path) -> Iterator[Site]:
    site = Site(str(tmp_path / "accounts.db"), SlowWorker())
    site.add("ann")
    yield site
    site.service.close()


class SlowWorker(FakeWorker):
    """Continues when released from another thread."""

    def __init__(self) -> None:
        super().__init__(lambda _: deltas([5, 6, 7, 8]))
        self.let = threading.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        count = 0
        async with aclosing(super().generate(request)) as stream:
            async for delta in stream:
                count += 1
                while count > 1 and not self.let.is_set():
                    await asyncio.sleep(0.01)
                yield delta


def logged_in(site: Site, browser: Browser, url: str) -> Page:
    page = browser.new_context(base_url=url, viewport={"width": 1100, "height": 800}).new_page()
    page.context.set_default_timeout(WAIT_MS)
    page.goto("/login")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    return page


def test_an_answer_goes_on_while_the_tab_is_closed(slow_site: Site, browser: Browser) -> None:
    worker = slow_site.worker
    assert isinstance(worker, SlowWorker)
    with running(Served(slow_site)) as served:
        page = logged_in(slow_site, browser, served.url)
        ask(page, "hi")
        expect(page.locator(".answer[data-status=writing]")).to_be_visible()
        address = page.url
        second = page.context.new_page()
        page.close()
        second.goto(address)  # while it is written
        expect(second.locator(".bubble")).to_have_text(["hi"])
        expect(second.locator(".answer[data-status=writing]")).to_be_visible()
        second.get_by_role("navigation").get_by_role("button", name="New chat").click()
        expect(second.get_by_label("Being answered")).to_be_visible()
        expect(second.locator(".bubble")).to_have_count(0)
        third = second.context.new_page()
        second.close()
        worker.let.set()
        third.goto(address)
        expect(third.locator(".answer[data-status=done]")).to_have_count(1)
        expect(third.locator(".bubble")).to_have_text(["hi"])
        assert (worker.closed, len(worker.requests)) == (0, 1)
        assert [one["role"] for one in stored(third)] == ["user", "assistant"]
        third.context.close()


def test_another_tab_follows_and_stops_an_answer(slow_site: Site, browser: Browser) -> None:
    with running(Served(slow_site)) as served:
        page = logged_in(slow_site, browser, served.url)
        ask(page, "hi")
        expect(page.locator(".answer[data-status=writing]")).to_be_visible()
        other = page.context.new_page()
        other.goto(page.url)
        expect(other.locator(".answer[data-status=writing]")).to_be_visible()
        other.keyboard.press("Escape")
        for tab in (other, page):
            expect(tab.locator(".answer[data-status=stopped]")).to_be_visible()
        assert [one["role"] for one in stored(page)] == ["user", "assistant"]
        # Each tab reads the conversation anew when the other one has changed it, and still knows how the answer ended.
        with page.expect_response(re.compile("/items")):
            other.evaluate("new BroadcastChannel('redoubt').postMessage(location.pathname.slice('/c/'.length))")
        page.locator("#message").fill("no")
        expect(page.locator(".answer[data-status=stopped]")).to_be_visible()
        page.context.close()


def test_an_exported_chat_is_imported(page: Page, tmp_path: Path) -> None:
    answered(page, "hi", 1)
    answered(page, "no", 2)
    page.get_by_label("Menu of hi").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as JSON").click()
    download.value.save_as(tmp_path / "chat.json")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Import chats").set_input_files(tmp_path / "chat.json")
    expect(page.get_by_text("One chat was imported.")).to_be_visible()
    expect(page.locator(".bubble")).to_have_text(["hi", "no"])
    assert len(page.request.get("/v1/conversations").json()["data"]) == 2
    (tmp_path / "wrong.json").write_text("{}")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Import chats").set_input_files(tmp_path / "wrong.json")
    expect(page.get_by_text("There is no conversation in this file")).to_be_visible()


def test_the_list_names_pins_finds_and_deletes(page: Page) -> None:
    answered(page, "hi", 1)
    menu = page.get_by_label("Menu of hi")
    menu.click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("Greetings")
    page.keyboard.press("Enter")
    entry = page.locator(".sidebar .title", has_text="Greetings")
    expect(entry).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("nothing like it")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    page.get_by_label("Search conversations").fill("HI")
    expect(entry).to_be_visible()
    page.get_by_label("Menu of Greetings").click()
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    page.get_by_label("Menu of Greetings").click()
    page.get_by_role("button", name="Delete").click()
    expect(entry).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(entry).to_be_visible()
    page.get_by_label("Menu of Greetings").click()
    page.get_by_role("button", name="Delete").click()
    page.reload()  # does not wait for the ten seconds
    expect(page.get_by_text("Your chats will be here.")).to_be_visible()
    assert page.request.get("/v1/conversations").json()["data"] == []


def test_tabs_agree(page: Page) -> None:
    answered(page, "hi", 1)
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".bubble")).to_have_text(["hi"])
    answered(page, "no", 2)
    expect(other.locator(".bubble")).to_have_text(["hi", "no"])


def test_a_chat_past_the_context_goes_on_and_still_says_so_after_a_reload(page: Page) -> None:
    for number in range(6):
        answered(page, f"question {number} about {'cats and dogs ' * 8}", number + 1)
    line = page.get_by_text("The model no longer sees what is above")
    below = line.evaluate("line => line.nextElementSibling.textContent")
    assert re.match("question [1-5] ", below)
    meter = page.locator(".meter").inner_text()
    expect(page.locator(".answer .tools").last).to_contain_text("tiny")
    page.reload()
    assert line.evaluate("line => line.nextElementSibling.textContent") == below
    expect(page.locator(".meter")).to_have_text(meter)
    expect(page.locator(".answer .tools").last).to_contain_text("tiny")
    assert page.get_by_role("alert").count() == 0


def test_settings_are_kept_with_the_chat_on_all_devices(page: Page) -> None:
    answered(page, "hi", 1)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be short. " * 200)
    with page.expect_response(lambda answer: answer.request.method == "POST" and "/v1/conversations/" in answer.url):
        page.get_by_role("button", name="Done").click()
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".bubble")).to_have_text(["hi"])
    other.get_by_role("button", name="Settings").click()
    expect(other.get_by_label("System prompt")).to_have_value("Be short. " * 200)
    expect(other.get_by_label("Longest answer, in tokens")).to_have_value("4")
    (kept,) = page.request.get("/v1/conversations").json()["data"]
    assert "Be short." in kept["metadata"]["settings"]


def test_a_temporary_chat_is_kept_nowhere(page: Page) -> None:
    page.get_by_label("Temporary chat").check()
    answered(page, "hi", 1)
    assert page.request.get("/v1/conversations").json()["data"] == []
    page.reload()
    expect(page.locator(".bubble")).to_have_count(0)


def test_signing_out_leaves_nothing_in_the_tab(page: Page, browser: Browser) -> None:
    answered(page, "hi", 1)
    watch = Watch(page.url)
    watch.attach(page)
    address = page.url
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(re.compile("/login$"))
    assert page.evaluate("sessionStorage.length") == 0
    page.goto(address)
    page.wait_for_url(re.compile(r"/login\?next=/c/conv_\w+$"))
