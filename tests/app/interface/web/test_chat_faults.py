"""What the chat page does with refusals, a service that is away, a second tab and a stop, against a fake `/v1`."""

import re
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.interface.web.test_chat import MANY_WORDS, wait_until
from tests.browser import WAIT_MS, ask, open_page
from tests.fake_v1 import FakeV1, running

pytestmark = pytest.mark.browser


def titles(page: Page) -> list[str]:
    return page.locator(".sidebar .title").all_inner_texts()


def test_a_refused_first_question_is_a_draft_again(browser: Browser) -> None:
    fake = FakeV1(error=(429, "All places are taken, try again later."), retry_after_s=3)
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "Hello?")
        card = page.locator(".card.failed")
        expect(card).to_contain_text("Your question was not taken; it is in the box below.")
        expect(card).to_contain_text("The service is busy.")
        expect(card).not_to_contain_text("Try again")
        expect(card.get_by_role("button")).to_have_text(re.compile(r"^Retry in [1-3] s$"))
        expect(card.get_by_role("button")).to_be_disabled()
        expect(card.locator("code")).to_be_hidden()
        card.get_by_text("Details").click()
        expect(card.locator("code")).to_have_text("req_1")
        box, column = card.bounding_box(), page.locator(".column").bounding_box()
        assert box is not None
        assert column is not None
        assert box["width"] > 0.9 * column["width"]
        expect(page.locator("#message")).to_have_value("Hello?")
        expect(page.locator(".bubble")).to_have_count(0)
        assert titles(page) == []
        page.reload()
        expect(page.locator("#message")).to_have_value("Hello?")
        fake.retry_after_s = 1
        page.locator("#message").press("Enter")
        expect(card.get_by_role("button")).to_have_text("Retry")
        fake.error = None
        card.get_by_role("button").click()
        expect(page.locator(".answer")).to_contain_text("Hello from the fake.")
        expect(page.locator("#message")).to_have_value("")
        assert fake.asked[-1]["messages"] == [{"role": "user", "content": "Hello?"}]
        expect(page.locator(".sidebar .title")).to_have_text("Hello?")


def test_a_refused_answer_or_edit_leaves_the_chat_as_it_was(browser: Browser) -> None:
    fake = FakeV1()
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "One?")
        expect(page.locator(".answer .tools")).to_be_visible()
        fake.error = (429, "No.")
        page.get_by_role("button", name="Retry", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("There is no other answer.")
        expect(page.locator(".answer .body")).to_have_text("Hello from the fake.")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit the question").fill("Two?")
        page.keyboard.press("Enter")
        expect(page.locator("#message")).to_have_value("Two?")
        expect(page.locator(".bubble")).to_have_text("One?")
        fake.error = None
        page.locator(".card.failed").get_by_role("button", name="Retry").click()
        expect(page.locator(".question .versions")).to_have_text("2/2")
        assert fake.asked[-1]["messages"] == [{"role": "user", "content": "Two?"}]


def test_a_service_that_is_away_loses_nothing(browser: Browser) -> None:
    fake = FakeV1()
    with ExitStack() as first:
        first.enter_context(running(fake))
        with open_page(browser, fake.url) as (page, _):
            ask(page, "One?")
            expect(page.locator(".answer .tools")).to_have_count(1)
            port = int(fake.url.rsplit(":", 1)[1])
            first.close()
            expect(page.get_by_text("Reconnecting to the service")).to_be_visible()
            expect(page.locator("header .dot.ready")).to_have_count(0)
            expect(page.locator("header")).to_contain_text("fake-model")
            ask(page, "Two?")
            expect(page.get_by_text("Waiting for the service")).to_be_visible()
            with running(fake, port=port):
                expect(page.locator(".answer .body").last).to_contain_text("Hello from the fake.")
                expect(page.get_by_text("Reconnecting to the service")).to_have_count(0)
                expect(page.locator(".bubble")).to_have_text(["One?", "Two?"])
                assert page.get_by_role("alert").count() == 0
                assert [one["messages"][-1]["content"] for one in fake.asked] == ["One?", "Two?"]


def test_a_question_that_waits_can_be_taken_back(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, _):
        ask(page, "One?")
        expect(page.locator(".answer .tools")).to_be_visible()
        page.context.set_offline(True)
        ask(page, "Two?")
        expect(page.get_by_text("Waiting for the service")).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#message")).to_have_value("Two?")
        expect(page.locator(".bubble")).to_have_text(["One?"])
        page.context.set_offline(False)
        expect(page.get_by_text("Reconnecting to the service")).to_have_count(0)
        assert len(fake.asked) == 1


def test_two_tabs_lose_no_turn_of_a_guests_chat(browser: Browser) -> None:
    fake = FakeV1()
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    with running(fake):
        one, two = context.new_page(), context.new_page()
        one.goto(fake.url)
        one.get_by_role("button", name="Settings").click()
        one.get_by_label("Keep my chats in this browser").check()
        one.get_by_role("button", name="Done").click()
        ask(one, "One?")
        expect(one.locator(".answer .tools")).to_be_visible()
        two.goto(fake.url)
        two.get_by_role("button", name="One?", exact=True).click()
        expect(two.locator(".bubble")).to_have_text(["One?"])
        ask(one, "Two?")
        expect(two.locator(".bubble")).to_have_text(["One?", "Two?"])
        expect(two.locator(".answer[data-status=done]")).to_have_count(2)
        fake.words, fake.pause_s = MANY_WORDS, 0.05
        ask(one, "Three?")
        ask(two, "Four?")
        for page in (one, two):
            expect(page.locator(".answer").last).to_contain_text("word20 ")
            page.keyboard.press("Escape")
        one.reload()
        bubbles, answers = one.locator(".bubble"), one.locator(".answer")
        expect(bubbles.nth(3).or_(one.locator(".question .versions")).first).to_be_visible()
        shown = bubbles.all_inner_texts()
        expect(answers).to_have_count(len(shown))
        expect(answers.nth(2)).to_contain_text("word20 ")
        if len(shown) == 4:  # the second tab had heard of the first one's question when it asked its own
            assert shown == ["One?", "Two?", "Three?", "Four?"]
        else:
            expect(one.locator(".question .versions")).to_have_text(re.compile("[12]/2"))
            one.locator(".question").last.get_by_role("button", name="Next version").or_(
                one.locator(".question").last.get_by_role("button", name="Previous version")
            ).and_(one.locator(":enabled")).click()
            expect(bubbles.last).not_to_have_text(shown[2])
            assert {shown[2], bubbles.last.inner_text()} == {"Three?", "Four?"}
        expect(answers.last).to_contain_text("word20 ")
    context.close()


def test_a_stopped_answer_goes_on_at_once(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.05)
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "Count")
        expect(page.locator(".answer .body")).to_contain_text("word3 ")
        page.keyboard.press("Escape")
        expect(page.get_by_text("You stopped this answer.")).to_be_visible()
        stopped = page.locator(".answer .body").inner_text()
        fake.words, fake.pause_s = [" The end."], 0.0
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".answer .body")).to_have_text(f"{stopped} The end.")
        assert fake.asked[1]["messages"][1] == {"role": "assistant", "content": stopped}
        wait_until(lambda: fake.cut_off == 1)
