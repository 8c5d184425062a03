"""The proxy's page in a browser: the verdict is shown before the first word, and a refused service gets none."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from redoubt_verify import Policy
from redoubt_verify.connections import Verifier
from redoubt_verify.proxy import Proxy
from tests.browser import WAIT_MS, Watch
from tests.verify.fake_service import CANARY, WORDS, FakeService

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


def test_it_shows_the_verdict_and_chats(browser: "Browser", service: FakeService, policy: Policy) -> None:
    with _page(browser, service, policy) as (page, watch):
        page.locator("#verdict.insecure").wait_for()
        assert "INSECURE" in page.locator("#verdict").inner_text()
        page.locator("#model option").wait_for(state="attached")
        assert service.targets == ["/v1/attestation", "/v1/models"]
        page.locator("#prompt").fill(CANARY)
        page.locator("#send").click()
        page.wait_for_function("text => document.querySelector('.assistant')?.textContent === text", arg="".join(WORDS))
        assert service.targets[-1] == "/v1/chat/completions"
        assert watch.outside == []
        assert watch.complaints == []


def test_a_refused_service_gets_no_word(browser: "Browser", service: FakeService, policy: Policy) -> None:
    service.image = None
    with _page(browser, service, policy) as (page, _):
        page.locator("#verdict.refused").wait_for()
        assert "measurement" in page.locator("#verdict").inner_text()
        assert page.locator("#send").is_disabled()
        page.locator("#prompt").fill(CANARY)
        page.evaluate("document.getElementById('ask').requestSubmit()")
        page.wait_for_timeout(300)
    service.assert_no_prompt()
