"""The page in headless Chromium, against a fake `/v1`."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from app.interface.page_gate.mount import mount_page
from tests.browser import answers, ask, open_page
from tests.fake_v1 import FakeV1, running

pytestmark = pytest.mark.browser

MANY_WORDS = [f"word{i} " for i in range(2000)]


def wait_until(holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def test_a_conversation(browser: Browser) -> None:
    with running(FakeV1(), mount_page) as fake, open_page(browser, fake.url) as (page, watch):
        expect(page).to_have_title("Redoubt")
        ask(page, "Where are you from?")
        expect(page.locator("#chat")).to_contain_text("Hello from the fake.")
        expect(page.locator("#question textarea")).to_have_value("")
        ask(page, "Really?")
        wait_until(lambda: len(fake.asked) == 2)
        assert fake.asked[1]["model"] == "fake-model"
        assert fake.asked[1]["stream"] is True
        assert fake.asked[1]["messages"] == [
            {"role": "user", "content": "Where are you from?"},
            {"role": "assistant", "content": "Hello from the fake."},
            {"role": "user", "content": "Really?"},
        ]
        expect(page.locator("#chat .message.bot")).to_have_count(2)
        page.get_by_role("button", name="New chat").click()
        expect(page.locator("#chat")).not_to_contain_text("Where are you from?")
        ask(page, "Once more")
        wait_until(lambda: len(fake.asked) == 3)
        assert fake.asked[2]["messages"] == [{"role": "user", "content": "Once more"}]
        assert watch.outside == []
        assert watch.complaints == []


def test_text_streams_in_and_stop_ends_the_work(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.01)
    with running(fake, mount_page), open_page(browser, fake.url) as (page, watch):
        ask(page, "Count")
        expect(page.locator("#chat")).to_contain_text("word0")
        assert "word1999" not in answers(page)[0]
        page.get_by_role("button", name="Stop").click()
        wait_until(lambda: fake.cut_off == 1)
        stopped = answers(page)[0]
        page.wait_for_timeout(300)
        assert answers(page)[0] == stopped
        fake.words = ["Fine."]
        ask(page, "Thanks")
        expect(page.locator("#chat")).to_contain_text("Fine.")
        assert fake.asked[1]["messages"][1]["content"].startswith("word0 word1")
        assert watch.complaints == []


def test_new_chat_ends_the_work_too(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.01)
    with running(fake, mount_page), open_page(browser, fake.url) as (page, _):
        ask(page, "Count")
        expect(page.locator("#chat")).to_contain_text("word0")
        page.get_by_role("button", name="New chat").click()
        wait_until(lambda: fake.cut_off == 1)
        expect(page.locator("#chat")).not_to_contain_text("word0")


def test_a_closed_tab_ends_the_work(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.01)
    with running(fake, mount_page):
        with open_page(browser, fake.url) as (page, _):
            ask(page, "Count")
            expect(page.locator("#chat")).to_contain_text("word0")
        wait_until(lambda: fake.cut_off == 1)


def test_answers_stream_to_several_tabs_at_once(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.01)
    with (
        running(fake, mount_page),
        open_page(browser, fake.url) as (one, _),
        open_page(browser, fake.url) as (two, _),
        open_page(browser, fake.url) as (three, _),
    ):
        for page in (one, two, three):
            ask(page, "Count")
        for page in (one, two, three):
            expect(page.locator("#chat")).to_contain_text("word0")
        assert fake.finished == 0


def test_settings_reach_the_service(browser: Browser) -> None:
    with running(FakeV1(), mount_page) as fake, open_page(browser, fake.url) as (page, watch):
        page.locator(".sidebar .toggle-button").click()
        page.get_by_label("System prompt").fill("Answer in French.")
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Longest answer, in tokens").fill("33")
        page.get_by_label("number input for Temperature").fill("0")
        page.keyboard.press("Tab")
        ask(page, "Hello")
        wait_until(lambda: len(fake.asked) == 1)
        asked = fake.asked[0]
        assert asked["messages"][0] == {"role": "system", "content": "Answer in French."}
        assert (asked["seed"], asked["max_tokens"], asked["temperature"]) == (7, 33, 0)
        assert watch.complaints == []


def test_an_error_is_shown_and_the_question_given_back(browser: Browser) -> None:
    fake = FakeV1(error=(429, "All places are taken, try again later."))
    with running(fake, mount_page), open_page(browser, fake.url) as (page, watch):
        ask(page, "Hello?")
        expect(page.get_by_text("All places are taken, try again later.")).to_be_visible()
        expect(page.locator("#question textarea")).to_have_value("Hello?")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        assert watch.complaints == []


def test_a_key_is_asked_for_and_shown(browser: Browser) -> None:
    fake = FakeV1(key="open sesame")
    with running(fake, mount_page), open_page(browser, fake.url) as (page, _):
        expect(page.get_by_text("Show a key.")).to_be_visible()
        page.locator(".sidebar .toggle-button").click()
        page.get_by_label("API key").fill("open sesame")
        expect(page.get_by_label("Model")).to_have_value("fake-model")


def test_an_answer_loads_nothing_from_elsewhere(browser: Browser) -> None:
    poison = '![x](http://127.0.0.2:9/a.png) <img src="http://127.0.0.2:9/b.png"> <script>document.title="X"</script>'
    fake = FakeV1(words=[poison, " The end."])
    with running(fake, mount_page), open_page(browser, fake.url) as (page, watch):
        ask(page, "Anything")
        expect(page.locator("#chat")).to_contain_text("The end.")
        page.wait_for_timeout(300)
        # Chromium announces a request that the policy then refuses; nothing may have answered or left.
        assert all("Content Security Policy" in complaint for complaint in watch.complaints), watch.complaints
        expect(page).to_have_title("Redoubt")
