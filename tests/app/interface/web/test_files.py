"""Files of a question in a browser: the real reader, real accounts or a guest's tab, over a fake worker."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import Site
from tests.app.interface.web.test_session import Served
from tests.app.interface.web.test_stored_chats import logged_in
from tests.app.service import MODEL, http_app, loopback_server
from tests.browser import WAIT_MS, Watch, ask, open_page, violations
from tests.fake_v1 import running

pytestmark = pytest.mark.browser

LEASE: Final = FilePayload(name="lease.md", mimeType="text/markdown", buffer=b"# Lease\n\nThe rent is 900.\n")
SHOWN: Final = '<document name="lease.md">'
PASTE: Final = """(area, text) => {
  const data = new DataTransfer();
  data.setData('text/plain', text);
  area.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}));
}"""
DROP: Final = """name => {
  const data = new DataTransfer();
  data.items.add(new File(['Call Ann.'], name));
  for (const kind of ['dragenter', 'drop']) {
    const event = new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true});
    document.querySelector('.thread').dispatchEvent(event);
  }
}"""


def attach(page: Page, *files: FilePayload) -> None:
    page.get_by_label("Files to attach").set_input_files(files)


def draft_chips(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached files").locator("li")


def sent_chips(page: Page) -> Locator:
    return page.locator(".question .chip")


def prompts(worker: FakeWorker) -> list[str]:
    return [MODEL.tokenizer.text(request.prompt_token_ids) for request in worker.requests]


def short_answers(page: Page) -> None:
    """The model is tiny."""
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Longest answer, in tokens").fill("4")
    page.get_by_role("button", name="Done").click()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5, 6])))
    site.add("ann")
    yield site
    site.service.close()


def test_a_users_files_are_kept_with_the_chat(site: Site, browser: Browser, tmp_path: Path) -> None:
    with running(Served(site)) as served:
        page = logged_in(site, browser, served.url)
        short_answers(page)
        attach(page, LEASE)
        expect(draft_chips(page)).to_have_text(re.compile(r"^lease\.md \d+ tokens$"))
        page.locator("#message").fill("rent?")
        expect(page.locator("#cost")).to_have_text(re.compile(r"^Fits: \d+ of 512 tokens\."))
        page.reload()
        expect(page.locator("#message")).to_have_value("rent?")
        draft_chips(page).get_by_role("button", name="lease.md").first.click()
        expect(page.get_by_role("dialog", name="lease.md")).to_contain_text("The rent is 900.")
        page.keyboard.press("Escape")
        expect(draft_chips(page).get_by_role("button", name="lease.md").first).to_be_focused()
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".answer .tools")).to_have_count(1)
        expect(draft_chips(page)).to_have_count(0)
        expect(sent_chips(page)).to_have_text(re.compile("lease.md"))
        page.wait_for_url(re.compile(r"/c/conv_\w+$"))
        assert "900" not in page.evaluate("JSON.stringify(sessionStorage)")

        other = page.context.new_page()
        other.goto(page.url)
        expect(sent_chips(other)).to_have_text("lease.md ")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit the question").fill("who?")
        page.keyboard.press("Enter")
        expect(page.locator(".question .versions")).to_have_text("2/2")
        expect(page.locator(".answer .tools")).to_be_visible()
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".answer .versions")).to_have_text("2/2")
        expect(page.locator(".answer .tools")).to_be_visible()
        expect(other.locator(".bubble")).to_have_text("who?")
        for tab in (page, other):
            tab.reload()
            expect(tab.locator(".bubble")).to_have_text("who?")
            expect(tab.locator(".answer .versions")).to_have_text("2/2")
            expect(sent_chips(tab)).to_have_text("lease.md ")
        asked = prompts(site.worker)
        assert [one.count(SHOWN) for one in asked] == [1, 1, 1]
        begins = [one.partition(SHOWN)[2] for one in asked]
        assert [one.partition("</document>")[2].strip().split("<")[0] for one in begins] == ["rent?", "who?", "who?"]

        page.get_by_label("Search conversations").fill("rent is 900")
        expect(page.locator(".sidebar li.found .title")).to_have_count(1)
        page.get_by_label(re.compile("^Menu of")).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Export as JSON").click()
        download.value.save_as(tmp_path / "chat.json")
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Import chats").set_input_files(tmp_path / "chat.json")
        expect(page.get_by_text("One chat was imported.")).to_be_visible()
        expect(sent_chips(page)).to_have_text("lease.md ")
        sent_chips(page).get_by_role("button").click()
        expect(page.get_by_role("dialog", name="lease.md")).to_contain_text("The rent is 900.")
        page.context.close()


@pytest.fixture
def guest(browser: Browser) -> Iterator[tuple[Page, FakeWorker]]:
    worker = FakeWorker(lambda _: deltas([5, 6]))
    with loopback_server(http_app(worker.generate)) as url, open_page(browser, url) as (page, watch):
        yield page, worker
        assert watch.outside == []


def test_a_guest_drops_pastes_and_removes(guest: tuple[Page, FakeWorker]) -> None:
    page, worker = guest
    short_answers(page)
    page.evaluate(DROP, "notes.txt")
    expect(draft_chips(page)).to_have_text(re.compile(r"^notes\.txt \d+ tokens$"))
    message = page.locator("#message")
    message.evaluate(PASTE, "a" * 4000)
    expect(draft_chips(page)).to_have_count(1)
    message.fill("See  and answer.")
    message.evaluate("area => area.setSelectionRange(4, 4)")
    message.evaluate(PASTE, "word " * 801)
    pasted = draft_chips(page).filter(has_text="Pasted text.txt")
    expect(page.locator("#cost")).to_have_text(re.compile("Too long for this model: .* and its context has 512"))
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    pasted.get_by_role("button", name="Paste as text").click()
    expect(message).to_have_value(f"See {'word ' * 801} and answer.")
    message.fill("")
    attach(page, FilePayload(name="photo.png", mimeType="image/png", buffer=b"\x89PNG\r\n\x1a\n" + bytes(100)))
    failed = draft_chips(page).filter(has_text="photo.png")
    expect(failed).to_have_class("chip failed")
    expect(page.locator("#cost")).to_have_text("Remove what could not be read, then send.")
    expect(failed.locator("p")).to_have_text('"photo.png" is a picture, which no model here sees.')
    failed.get_by_role("button", name="Remove photo.png").focus()
    page.keyboard.press("Enter")
    expect(draft_chips(page)).to_have_count(1)
    assert page.evaluate("document.activeElement !== document.body")
    ask(page, "who?")
    expect(page.locator(".answer .tools")).to_have_count(1)
    assert "Call Ann." in prompts(worker)[0]
    page.reload()
    expect(sent_chips(page)).to_have_text(re.compile(r"notes\.txt \d+ tokens"))
    ask(page, "sure?")
    expect(page.locator(".answer .tools")).to_have_count(2)
    assert "Call Ann." in prompts(worker)[1], "the file stays with its question"


@pytest.mark.parametrize(("colours", "width"), [("light", 1100), ("dark", 320)])
def test_they_are_accessible(browser: Browser, colours: Any, width: int) -> None:
    worker = FakeWorker(lambda _: deltas([5, 6]))
    with loopback_server(http_app(worker.generate)) as url:
        page = browser.new_page(color_scheme=colours, viewport={"width": width, "height": 560}, base_url=url)
        page.set_default_timeout(WAIT_MS)
        watch = Watch(url)
        watch.attach(page)
        page.goto("/")
        long_name = FilePayload(name=f"A very long name {'of a contract ' * 8}.md", mimeType="", buffer=b"The rent.")
        attach(page, LEASE, long_name, FilePayload(name="photo.png", mimeType="image/png", buffer=b"\x89PNG"))
        status = page.locator(".composer [role=status]")
        expect(status).to_contain_text("lease.md is attached, ")
        expect(status).to_contain_text("photo.png: ")
        assert violations(page) == []
        assert page.evaluate("document.querySelector('main').scrollWidth <= innerWidth")
        page.get_by_role("button", name="Remove photo.png").click()
        draft_chips(page).get_by_role("button", name="lease.md").first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.locator("#message").fill("rent?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".answer .tools")).to_have_count(1)
        assert violations(page) == []
        assert watch.complaints == [
            f"Failed to load resource: the server responded with a status of 400 ({reason})"
            for reason in ("Bad Request",)
        ]
        page.close()
