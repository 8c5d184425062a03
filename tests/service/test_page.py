"""The page against the real service: what it shows, and what stays in the engine afterwards."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import ask, open_page
from tests.service.running import RunningService

pytestmark = pytest.mark.browser


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
