"""Chats longer than the context, thinking, models, and the list of conversations, on the page against a fake `/v1`."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import ask, open_page
from tests.fake_v1 import FakeV1, running

pytestmark = pytest.mark.browser

MANY = 300


def _turn(number: int, role: str, text: str, **values: Any) -> dict[str, Any]:
    parent = f"t{number - 1}" if number else ""
    common = {"askedAtMs": 0, "firstAtMs": 0, "thoughtUntilMs": 0, "endedAtMs": 0, "model": "", "status": "done"}
    return {"id": f"t{number}", "parent": parent, "role": role, "text": text, **common, **values}


def _tree(texts: list[str]) -> dict[str, Any]:
    turns = [_turn(place, "assistant" if place % 2 else "user", text) for place, text in enumerate(texts)]
    return {
        "turns": {one["id"]: one for one in turns},
        "children": {one["parent"]: [one["id"]] for one in turns},
        "chosen": {one["parent"]: one["id"] for one in turns},
    }


def keep(page: Page, chats: dict[str, list[str]]) -> None:
    """Puts a guest's chats into the tab, the last one the newest, and loads the page anew."""
    kept = {
        f"k{place}": {"id": f"k{place}", "title": title, "updatedAtMs": place, "isPinned": False, "tree": _tree(texts)}
        for place, (title, texts) in enumerate(chats.items())
    }
    page.evaluate("kept => sessionStorage.setItem('redoubt.conversations', kept)", json.dumps(kept))
    page.reload()


def test_a_chat_of_200_turns_goes_on_and_says_what_is_no_longer_seen(browser: Browser) -> None:
    contexts = [
        {"left_out_turns": 120, "limit_tokens": 1400},
        {"left_out_turns": 120, "limit_tokens": 1310},
        {"left_out_turns": 150, "limit_tokens": 2048, "full": True},
    ]
    fake = FakeV1(contexts=contexts)
    with running(fake), open_page(browser, fake.url) as (page, watch):
        keep(page, {"Long": [text for turn in range(200) for text in (f"Question {turn}", f"Answer {turn}")]})
        page.get_by_role("button", name="Long", exact=True).click()
        seen = page.get_by_text("The model no longer sees what is above")
        expect(page.locator(".bubble")).to_have_count(200)
        expect(seen).to_have_count(0)
        ask(page, "Question 200")
        expect(seen).to_have_count(1)
        below = page.locator("article.question").filter(has_text="Question 120")
        assert seen.evaluate("line => line.nextElementSibling.textContent").startswith("Question 120")
        expect(below).to_have_count(1)
        expect(page.locator(".meter")).to_contain_text("1.3k/1.4k, 1.1k remembered, 95 left")
        ask(page, "Question 201")
        expect(page.locator(".meter")).to_contain_text("5 left")
        page.locator("#message").fill("Question 202")
        expect(page.locator(".meter")).to_contain_text("The next question leaves out the oldest turns")
        fake.finish_reason = "length"
        page.keyboard.press("Enter")
        expect(page.get_by_text("Cut where the context ends, 5 tokens.")).to_be_visible()
        assert seen.evaluate("line => line.nextElementSibling.textContent").startswith("Question 150")
        assert page.get_by_role("alert").count() == 0
        assert [len(one["messages"]) for one in fake.asked] == [401, 403, 405]
        assert {one["on_overflow"] for one in fake.asked} == {"shift"}
        assert watch.complaints == []


def test_thinking_is_chosen_and_kept_with_the_chat(browser: Browser) -> None:
    fake = FakeV1(thinking={"switch": True, "short_tokens": 128, "default": "full"})
    with running(fake), open_page(browser, fake.url) as (page, _):
        think = page.get_by_label("Think", exact=True)
        expect(think).to_have_value("full")
        think.select_option("short")
        ask(page, "One?")
        expect(page.locator(".answer .tools")).to_have_count(1)
        assert (fake.asked[0]["enable_thinking"], fake.asked[0]["thinking_budget"]) == (True, 128)
        think.select_option("off")
        page.reload()
        expect(think).to_have_value("off")
        fake.words, fake.thoughts, fake.finish_reason = [], ["Hm", "m"], "length"
        ask(page, "Two?")
        expect(page.locator(".answer").last).to_contain_text("It was still thinking when the longest answer")
        assert fake.asked[1]["enable_thinking"] is False
        assert "thinking_budget" not in fake.asked[1]
        page.get_by_role("navigation").get_by_role("button", name="New chat").click()
        expect(think).to_have_value("short")
        page.get_by_role("button", name="One?", exact=True).click()
        expect(think).to_have_value("off")


def test_each_answer_has_its_model_and_another_may_answer(browser: Browser) -> None:
    fake = FakeV1(mute_models=("mute-model",), other_models=("other-model",))
    with running(fake), open_page(browser, fake.url) as (page, watch):
        offered = page.get_by_label("Model", exact=True).locator("option")
        expect(offered).to_have_text([re.compile("fake-model"), re.compile("other-model")])
        ask(page, "One?")
        expect(page.locator(".answer .tools")).to_contain_text("fake-model, 5 tokens")
        page.get_by_label("Retry with another model").click()
        page.get_by_role("button", name="other-model").click()
        expect(page.locator(".answer .versions")).to_have_text("2/2")
        expect(page.locator(".answer .tools")).to_contain_text("other-model, 5 tokens")
        assert [one["model"] for one in fake.asked] == ["fake-model", "other-model"]
        expect(page.get_by_label("Model", exact=True)).to_have_value("fake-model")
        assert watch.complaints == []


def test_settings_belong_to_the_chat(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, _):
        ask(page, "One?")
        expect(page.locator(".answer .tools")).to_be_visible()
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("System prompt").fill("Answer in French.")
        page.get_by_role("button", name="Done").click()
        page.get_by_role("navigation").get_by_role("button", name="New chat").click()
        ask(page, "Two?")
        expect(page.locator(".answer .tools")).to_be_visible()
        assert [one["role"] for one in fake.asked[1]["messages"]] == ["user"]
        page.get_by_role("button", name="One?", exact=True).click()
        page.reload()
        ask(page, "Three?")
        expect(page.locator(".answer .tools")).to_have_count(2)
        assert fake.asked[2]["messages"][0] == {"role": "system", "content": "Answer in French."}


def test_all_chats_are_reached_and_found_by_keys(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, watch):
        keep(page, {f"Chat {place}": ["hi", f"The answer is number{place}, of all numbers."] for place in range(MANY)})
        rows = page.locator(".sidebar .title")
        expect(rows.first).to_have_text(f"Chat {MANY - 1}")
        assert rows.count() < 100
        expect(rows.first).to_have_attribute("title", f"Chat {MANY - 1}")
        listed = page.locator(".sidebar .list")
        listed.evaluate("list => { list.scrollTop = list.scrollHeight }")
        expect(rows.last).to_have_text("Chat 0")
        assert rows.count() < 100
        page.keyboard.press("Control+k")
        page.keyboard.type("number17")
        expect(rows).to_have_count(11)
        expect(rows.first).to_contain_text("number179, of all numbers.")
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
            page.keyboard.press(key)
        expect(rows.nth(1)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".answer .body")).to_contain_text("number178")
        expect(page).to_have_title("Chat 178 - Redoubt")
        page.keyboard.press("Control+k")
        page.locator("#search").fill("number250")
        expect(rows).to_have_count(1)
        page.locator("#search").press("Enter")
        expect(page).to_have_title("Chat 250 - Redoubt")
        assert watch.complaints == []
