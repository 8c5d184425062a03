"""The page in headless Chromium, against a fake `/v1`."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser import answers, ask, open_page
from tests.fake_v1 import FakeV1, running

pytestmark = pytest.mark.browser

MANY_WORDS = [f"word{i} " for i in range(2000)]


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def test_a_conversation(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, watch):
        expect(page).to_have_title("Redoubt")
        ask(page, "Where are you from?")
        expect(page.locator(".answer")).to_contain_text("Hello from the fake.")
        expect(page.locator("#message")).to_have_value("")
        ask(page, "Really?")
        wait_until(lambda: len(fake.asked) == 2)
        assert fake.asked[1]["model"] == "fake-model"
        assert fake.asked[1]["stream"] is True
        assert fake.asked[1]["messages"] == [
            {"role": "user", "content": "Where are you from?"},
            {"role": "assistant", "content": "Hello from the fake."},
            {"role": "user", "content": "Really?"},
        ]
        expect(page.locator(".answer")).to_have_count(2)
        page.get_by_role("navigation").get_by_role("button", name="New chat").click()
        expect(page.locator(".thread")).not_to_contain_text("Where are you from?")
        ask(page, "Once more")
        wait_until(lambda: len(fake.asked) == 3)
        assert fake.asked[2]["messages"] == [{"role": "user", "content": "Once more"}]
        assert watch.outside == []
        assert watch.complaints == []


def test_a_model_that_cannot_chat_invites_nobody(browser: Browser) -> None:
    fake = FakeV1(capabilities=("completions",))
    with running(fake), open_page(browser, fake.url) as (page, watch):
        expect(page.locator(".welcome")).to_contain_text("fake-model has no chat template, so it can't chat.")
        expect(page.locator("#message")).to_be_disabled()
        assert page.locator(".starters").count() == 0
        assert watch.complaints == []


def test_text_streams_in_and_stop_ends_the_work(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.05)
    with running(fake), open_page(browser, fake.url) as (page, watch):
        ask(page, "Count")
        expect(page.locator(".thread")).to_contain_text("word0")
        assert "word1999" not in answers(page)[0]
        page.get_by_role("button", name="Stop").click()
        wait_until(lambda: fake.cut_off == 1)
        expect(page.locator(".answer[data-status=stopped]")).to_be_visible()
        stopped = answers(page)[0]
        page.wait_for_timeout(300)
        assert answers(page)[0] == stopped
        fake.words = ["Fine."]
        ask(page, "Thanks")
        expect(page.locator(".thread")).to_contain_text("Fine.")
        assert fake.asked[1]["messages"][1]["content"].startswith("word0 word1")
        assert watch.complaints == []


def test_new_chat_ends_the_work_too(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.05)
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "Count")
        expect(page.locator(".thread")).to_contain_text("word0")
        page.get_by_role("navigation").get_by_role("button", name="New chat").click()
        wait_until(lambda: fake.cut_off == 1)
        expect(page.locator(".thread")).not_to_contain_text("word0")


def test_a_closed_tab_ends_the_work(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.05)
    with running(fake):
        with open_page(browser, fake.url) as (page, _):
            ask(page, "Count")
            expect(page.locator(".thread")).to_contain_text("word0")
        wait_until(lambda: fake.cut_off == 1)


def test_answers_stream_to_several_tabs_at_once(browser: Browser) -> None:
    fake = FakeV1(words=MANY_WORDS, pause_s=0.05)
    with (
        running(fake),
        open_page(browser, fake.url) as (one, _),
        open_page(browser, fake.url) as (two, _),
        open_page(browser, fake.url) as (three, _),
    ):
        for page in (one, two, three):
            ask(page, "Count")
        for page in (one, two, three):
            expect(page.locator(".thread")).to_contain_text("word0")
        assert fake.finished == 0


def test_settings_reach_the_service(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, watch):
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("System prompt").fill("Answer in French.")
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Longest answer, in tokens").fill("33")
        page.get_by_label("Temperature").fill("0")
        page.get_by_role("button", name="Done").click()
        ask(page, "Hello")
        wait_until(lambda: len(fake.asked) == 1)
        asked = fake.asked[0]
        assert asked["messages"][0] == {"role": "system", "content": "Answer in French."}
        assert (asked["seed"], asked["max_completion_tokens"], asked["temperature"]) == (7, 33, 0)
        assert asked["on_overflow"] == "shift"
        assert "enable_thinking" not in asked
        assert watch.complaints == []


def test_a_key_is_asked_for_and_kept_in_the_tab(browser: Browser) -> None:
    fake = FakeV1(key="open sesame")
    with running(fake), open_page(browser, fake.url) as (page, _):
        page.get_by_label("This service asks for an API key.").fill("open sesame")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("header")).to_contain_text("fake-model")
        page.reload()
        expect(page.locator("header")).to_contain_text("fake-model")


def test_models_that_do_not_come_are_asked_for_again(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, _):
        page.route("**/v1/models", lambda route: None, times=1)  # it is never answered
        page.reload()
        expect(page.locator("header")).to_contain_text("fake-model")


def test_a_reload_keeps_the_chat_and_the_draft(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, watch):
        ask(page, "Where are you from?")
        expect(page.locator(".answer .tools")).to_be_visible()
        page.locator("#message").fill("Half a thought")
        page.reload()
        expect(page.locator(".answer")).to_contain_text("Hello from the fake.")
        expect(page.locator("#message")).to_have_value("Half a thought")
        assert watch.complaints == []


def test_a_reload_shows_the_end_of_a_long_chat(browser: Browser) -> None:
    fake = FakeV1(words=["A paragraph of words.\n\n" * 30])
    with running(fake), open_page(browser, fake.url) as (page, _):
        for count in range(1, 7):
            ask(page, f"Question {count}")
            expect(page.locator(".answer .tools")).to_have_count(count)
        page.reload()
        expect(page.locator(".answer .tools").last).to_be_in_viewport()
        page.wait_for_timeout(300)
        expect(page.locator(".answer .tools").last).to_be_in_viewport()
        expect(page.get_by_role("button", name="Jump to latest")).to_have_count(0)


def test_a_question_that_comes_before_the_models_waits_for_them(browser: Browser) -> None:
    fake = FakeV1()
    with running(fake), open_page(browser, fake.url) as (page, _):
        held: list[Route] = []
        page.route("**/v1/models", lambda route: held.append(route))
        with page.expect_request("**/v1/models"):
            page.reload()
        ask(page, "One?")
        expect(page.locator(".waiting")).to_contain_text("Waiting for a place")
        assert fake.asked == []
        held[0].continue_()
        expect(page.locator(".answer")).to_contain_text("Hello from the fake.")
        assert fake.asked[0]["model"] == "fake-model"


def test_another_answer_and_another_question_are_versions(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, _):
        ask(page, "One?")
        expect(page.locator(".answer")).to_contain_text("Hello from the fake.")
        fake.words = ["Another."]
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".answer")).to_contain_text("Another.")
        expect(page.locator(".answer .versions")).to_have_text("2/2")
        assert fake.asked[0]["seed"] != fake.asked[1]["seed"]
        page.locator(".answer").get_by_role("button", name="Previous version").click()
        expect(page.locator(".answer")).to_contain_text("Hello from the fake.")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Edit the question").fill("Two?")
        page.keyboard.press("Enter")
        expect(page.locator(".question .versions")).to_have_text("2/2")
        expect(page.locator(".answer")).to_contain_text("Another.")
        wait_until(lambda: len(fake.asked) == 3)
        assert fake.asked[2]["messages"] == [{"role": "user", "content": "Two?"}]


def test_a_stop_before_the_first_word_leaves_no_question_without_an_answer(browser: Browser) -> None:
    fake = FakeV1(words=[""] * 5000, pause_s=0.05)
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "One?")
        expect(page.locator(".waiting")).to_contain_text("Reading the prompt")
        page.keyboard.press("Escape")
        expect(page.get_by_text("Stopped before the answer began.")).to_be_visible()
        fake.words = ["Fine."]
        ask(page, "Two?")
        expect(page.locator(".thread")).to_contain_text("Fine.")
        assert fake.asked[1]["messages"] == [{"role": "user", "content": "Two?"}]


@pytest.mark.parametrize(
    ("news", "shown"),
    [
        ({"queued_ahead": 2, "processed": 0}, "Queued, 2 ahead"),
        ({"queued_ahead": 0, "processed": 0}, "Queued, next in line"),
        ({"queued_ahead": None, "processed": 820}, "Reading the prompt, 40 %"),
    ],
    ids=["queued", "next", "reading"],
)
def test_a_wait_says_what_for(browser: Browser, news: dict[str, int | None], shown: str) -> None:
    fake = FakeV1(words=[""] * 3000, pause_s=0.02, news=[news | {"total": 2048, "cache": 0, "time_ms": 0}])
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "One?")
        expect(page.locator(".waiting")).to_contain_text(shown)
        expect(page.locator(".aloud")).to_have_text(shown.removesuffix(", 40 %"))


def test_a_cut_answer_goes_on(browser: Browser) -> None:
    fake = FakeV1(words=["One, two,"], finish_reason="length")
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "Count")
        expect(page.get_by_role("button", name="Continue")).to_be_visible()
        fake.words, fake.finish_reason = [" three."], "stop"
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".answer .body")).to_have_text("One, two, three.")
        expect(page.get_by_role("button", name="Continue")).to_have_count(0)


def test_one_can_read_while_it_writes(browser: Browser) -> None:
    fake = FakeV1(words=[f"line {i}\n\n" for i in range(1000)], pause_s=0.01)
    with running(fake), open_page(browser, fake.url) as (page, _):
        ask(page, "Count")
        expect(page.locator(".thread")).to_contain_text("line 60")
        page.locator(".thread").evaluate("thread => { thread.scrollTop = 0 }")
        expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
        expect(page.locator(".thread")).to_contain_text("line 120")
        assert page.locator(".thread").evaluate("thread => thread.scrollTop") == 0
        page.get_by_role("button", name="Jump to latest").click()
        expect(page.get_by_role("button", name="Jump to latest")).to_have_count(0)


def test_an_answer_is_plain_text_where_the_service_has_another_build_by_now(browser: Browser) -> None:
    with running(FakeV1(words=["**Bold**"])) as fake, open_page(browser, fake.url) as (page, _):
        page.route("**/ui/assets/text-*.js", lambda route: route.fulfill(status=404))
        ask(page, "Anything")
        expect(page.locator(".answer .tools")).to_be_visible()
        expect(page.locator(".answer .body")).to_have_text("**Bold**")


def test_an_answer_loads_nothing_from_elsewhere(browser: Browser) -> None:
    poison = '![x](http://127.0.0.2:9/a.png) <img src="http://127.0.0.2:9/b.png"> <script>document.title="X"</script>'
    fake = FakeV1(words=[poison, " The end."])
    with running(fake), open_page(browser, fake.url) as (page, watch):
        ask(page, "Anything")
        expect(page.locator(".thread")).to_contain_text("The end.")
        page.wait_for_timeout(300)
        assert (watch.complaints, watch.outside) == ([], [])
        expect(page).to_have_title("Anything - Redoubt")


def test_the_keyboard_is_enough(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, _):
        expect(page.locator("#message")).to_be_focused()
        page.keyboard.type("One")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("line more")
        page.keyboard.press("Enter")
        wait_until(lambda: len(fake.asked) == 1)
        assert fake.asked[0]["messages"] == [{"role": "user", "content": "One\nline more"}]
        expect(page.locator(".answer .tools")).to_be_visible()
        page.locator(".skip").focus()
        names = []
        for _ in range(12):
            page.keyboard.press("Tab")
            page.wait_for_timeout(20)  # behind the last one nothing pulls the focus back
            names.append(page.evaluate("(e => e.ariaLabel || e.textContent.trim() || e.id)(document.activeElement)"))
        expected = ["New chat", "Search conversations", "One line more", "Settings", "Edit", "Retry", "Message"]
        assert [name for name in names if name in expected] == expected
