"""The proxy's page in a browser: the verdict is shown before the first word, and a refused service gets none."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI
from playwright.sync_api import expect

from redoubt_verify import Policy
from redoubt_verify.connections import Verifier
from redoubt_verify.proxy import Proxy
from tests.browser import WAIT_MS, Watch, ask, open_page, violations
from tests.fake_v1 import FakeV1, running
from tests.verify.fake_service import CANARY, MODEL, WORDS, FakeService, TlsKey

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@contextmanager
def _page(browser: "Browser", service: FakeService, policy: Policy) -> Iterator[tuple["Page", Watch]]:
    proxy = Proxy(Verifier(service.url, policy), "127.0.0.1", 0)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    watch = Watch(proxy.address)
    watch.attach(page)
    try:
        page.goto(proxy.address)
        yield page, watch
    finally:
        page.close()
        proxy.shutdown()
        thread.join()
        proxy.server_close()


def test_it_shows_the_verdict_and_chats(
    browser: "Browser", service: FakeService, policy: Policy, tmp_path: Path
) -> None:
    with _page(browser, service, policy) as (page, watch):
        bar = page.locator(".verdict")
        expect(bar).to_contain_text("INSECURE: a test key signed this evidence.")
        bar.locator("summary").click()
        expect(bar.get_by_text(MODEL["sha256"])).to_be_visible()
        expect(bar).to_contain_text("Evidence checked")
        assert violations(page) == []
        expect(page.locator("header")).to_contain_text("smollm2")
        ask(page, CANARY)
        expect(page.locator(".answer .body")).to_have_text("".join(WORDS))
        assert "/v1/chat/completions" in service.targets
        assert watch.outside == []
        assert watch.complaints == []
        # It is started anew, with another image.
        service.keys[:] = [TlsKey.make(tmp_path)]
        service.image = None
        service.hang_up()
        service.plain.clear()
        service.raw.clear()
        ask(page, CANARY)
        expect(bar).to_contain_text("REFUSED: measurement: ")
        service.assert_no_prompt()


def test_a_refused_service_gets_no_word(browser: "Browser", service: FakeService, policy: Policy) -> None:
    service.image = None
    with _page(browser, service, policy) as (page, _):
        expect(page.locator(".verdict.refused")).to_contain_text("measurement")
        ask(page, CANARY)
        expect(page.locator(".bubble")).to_have_text(CANARY)
        with page.expect_response("**/verdict.json"):
            pass
    service.assert_no_prompt()


def test_a_service_cannot_show_a_lock_on_its_own_page(browser: "Browser") -> None:
    """Its copy of the page asks nobody for a verdict."""

    def forge(app: FastAPI) -> None:
        app.add_api_route("/verdict.json", lambda: {"state": "verified", "service": "chat.example"})

    with running(FakeV1(), forge) as fake, open_page(browser, fake.url) as (page, watch):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        ask(page, "Hello?")
        expect(page.locator(".answer .tools")).to_be_visible()
        assert page.locator(".verdict").count() == 0
        assert not [url for url in asked if "verdict" in url]
        assert watch.complaints == []
