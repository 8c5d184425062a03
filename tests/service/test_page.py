"""The page against the real service: what it shows, and what stays in the engine afterwards."""

import re

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import ask, open_page
from tests.service.running import RunningService

pytestmark = pytest.mark.browser


def test_the_page_comes_through_haproxy_as_it_was_built(service: RunningService) -> None:
    for path in ("/", "/ui/icon.svg"):
        for coding in ("br", "gzip"):
            answer = httpx.get(service.url + path, headers={"Accept-Encoding": coding}, timeout=60)
            assert (answer.headers["content-encoding"], answer.headers["vary"]) == (coding, "Accept-Encoding")
            assert answer.text.startswith(("<!doctype html>", "<svg"))
            known = {"Accept-Encoding": coding, "If-None-Match": answer.headers["etag"]}
            assert httpx.get(service.url + path, headers=known, timeout=60).status_code == 304


def rave(page: Page) -> None:
    """Asks for an answer that does not end by itself: at the highest temperature the end is one token of many."""
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("2")
    page.get_by_label("Top-p").fill("1")
    page.get_by_role("button", name="Done").click()
    ask(page, "Count from one to one thousand in words, and leave none out.")


def test_a_conversation_with_the_real_model(service: RunningService, browser: Browser) -> None:
    with open_page(browser, service.url) as (page, watch):
        ask(page, "What is the capital of France?")
        expect(page.locator(".answer .body")).to_contain_text(re.compile(r"\w{2}"), timeout=60_000)
        expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
        expect(page.locator(".answer .tools")).to_contain_text("tokens")
        ask(page, "And of Italy?")
        expect(page.locator(".answer .tools")).to_have_count(2, timeout=60_000)
        # Two workers, chosen by their queues: the third question meets one that has computed the chat's first page.
        ask(page, "And of Spain?")
        expect(page.locator(".answer .tools")).to_have_count(3, timeout=60_000)
        expect(page.locator(".meter")).to_contain_text("remembered")
        page.reload()
        expect(page.locator(".answer .tools")).to_have_count(3)
        page.get_by_role("button", name="Retry").last.click()
        expect(page.locator(".answer .versions")).to_have_text("2/2", timeout=60_000)
        page.get_by_role("navigation").get_by_role("button", name="New chat").click()
        expect(page.locator(".answer")).to_have_count(0)
        assert watch.outside == []
        assert watch.complaints == []


def test_stop_frees_the_engine(service: RunningService, browser: Browser) -> None:
    with open_page(browser, service.url) as (page, watch):
        rave(page)
        expect(page.locator(".answer .body")).to_contain_text(re.compile(r"\w{2}"))
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator(".answer .body")).to_contain_text(re.compile(r"\w{2}"))
        service.wait_until_idle()
        assert watch.complaints == []


def test_a_closed_tab_frees_the_engine(service: RunningService, browser: Browser) -> None:
    with open_page(browser, service.url) as (page, _):
        rave(page)
        expect(page.locator(".answer .body")).to_contain_text(re.compile(r"\w{2}"))
    service.wait_until_idle()
