"""The playground in headless Chromium, against a fake `/v1`."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from app.playground.program import application
from tests.browser import WAIT_MS, Watch, fill_in_tab
from tests.fake_v1 import FakeV1, running

# Of pandas, as Gradio uses it.
pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting"),
    pytest.mark.filterwarnings("ignore:The copy keyword is deprecated"),
]


@contextmanager
def playground(browser: Browser, fake: FakeV1) -> Iterator[tuple[Page, Watch]]:
    """The web page, once the models are known."""
    config = uvicorn.Config(
        application(fake.url, "127.0.0.1"), port=0, log_level="critical", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    page.set_default_timeout(WAIT_MS)
    watch = Watch(url)
    watch.attach(page)
    try:
        page.goto(url)
        page.get_by_label("Question").wait_for()
        yield page, watch
    finally:
        page.close()
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


def ask(page: Page, question: str) -> None:
    """Gradio takes no question before it has finished with the last one, which it does not show."""
    field = page.get_by_label("Question")
    field.fill(question)
    deadline_s = time.monotonic() + WAIT_MS / 1000
    while field.input_value():
        assert time.monotonic() < deadline_s, "the question is not taken"
        field.press("Enter")
        page.wait_for_timeout(200)


def ready(page: Page) -> None:
    expect(page.get_by_label("Model A")).to_have_value("fake-model")


def test_two_answers_to_one_question(browser: Browser) -> None:
    poison = "![x](http://127.0.0.2:9/a.png) <img src='http://127.0.0.2:9/b.png'> The end."
    fake = FakeV1(words=["Hello", " there. ", poison], thoughts=["Hm."])
    with running(fake), playground(browser, fake) as (page, watch):
        ready(page)
        expect(page).to_have_title("Redoubt playground")
        expect(page.get_by_text("avx512_vnni").locator("visible=true")).to_be_visible()
        page.get_by_label("System prompt").fill("Be brief.")
        ask(page, "Who are you?")
        for side in ("a", "b"):
            expect(page.locator(f"#chat-{side}")).to_contain_text("The end.")
            expect(page.locator(f"#told-{side}")).to_contain_text(re.compile(r"first token \d+\.\d\d s, 3 tokens"))
        ask(page, "Really?")
        for side in ("a", "b"):
            expect(page.locator(f"#chat-{side}").get_by_text("The end.")).to_have_count(2)
        with page.expect_response("**/queue/data*"):
            page.get_by_label("Question").press("Enter")  # without a question
        page.wait_for_timeout(300)
        for side in ("a", "b"):
            expect(page.locator(f"#chat-{side}").get_by_text("The end.")).to_have_count(2)
        own, greedy = sorted(fake.asked[:2], key=len)
        assert own["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Who are you?"},
        ]
        assert ("do_sample" in own, greedy["do_sample"]) == (False, False)
        assert [one["role"] for one in fake.asked[2]["messages"]] == ["system", "user", "assistant", "user"]
        page.get_by_role("button", name="New chat").click()
        expect(page.locator("#chat-a").get_by_text("The end.")).to_have_count(0)
        assert all("127.0.0.2" in url for url in watch.outside), "the policy has stopped what the model wrote"
        assert all("127.0.0.2" in text or "ERR_BLOCKED" in text for text in watch.complaints)


def test_stop_ends_the_work(browser: Browser) -> None:
    fake = FakeV1(words=[f"word{i} " for i in range(3000)], pause_s=0.05)
    with running(fake), playground(browser, fake) as (page, _):
        ready(page)
        ask(page, "Count")
        expect(page.locator("#chat-b")).to_contain_text("word5")
        page.get_by_role("button", name="Stop").click()
        deadline_s = time.monotonic() + 60
        while fake.cut_off < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_the_next_question_can_be_typed_meanwhile(browser: Browser) -> None:
    fake = FakeV1(words=[f"word{i} " for i in range(3000)], pause_s=0.05)
    with running(fake), playground(browser, fake) as (page, _):
        ready(page)
        ask(page, "Count")
        expect(page.locator("#chat-a")).to_contain_text("word1")
        page.get_by_label("Question").fill("Really?")
        shown = page.locator("#told-a").inner_text()
        expect(page.locator("#told-a")).not_to_have_text(shown)
        expect(page.get_by_label("Question")).to_have_value("Really?")
        page.get_by_role("button", name="Stop").click()


def test_what_is_refused_is_one_line(browser: Browser) -> None:
    fake = FakeV1(error=(400, "'num_beams': at most 4 are *allowed*."))
    with running(fake), playground(browser, fake) as (page, watch):
        ready(page)
        ask(page, "Hello?")
        expect(page.locator("#told-a")).to_have_text("'num_beams': at most 4 are *allowed*.")
        fake.error = None
        fill_in_tab(page, "Sampling", "Temperature", "warm")
        page.get_by_label("Decoding A").click()
        page.get_by_role("option", name="sampling").click()
        ask(page, "Hello?")
        expect(page.locator("#told-a")).to_have_text("temperature: 'warm' is no number.")
        expect(page.locator("#chat-b")).to_contain_text("Hello from the fake.")
        fake.finish_reason = None
        page.get_by_label("Temperature").fill("0.5")
        ask(page, "Hello?")
        expect(page.locator("#told-a")).to_have_text("The connection broke off before the answer's end.")
        assert fake.asked[-1].get("temperature", fake.asked[-2].get("temperature")) == 0.5
        assert watch.outside == []


def test_a_key_stays_in_the_process(
    browser: Browser, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeV1(key="open sesame")
    with running(fake), playground(browser, fake) as (page, _):
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        expect(page.get_by_text("This service asks for an API key or a login.")).to_be_visible()
        page.get_by_text("API key or login").first.click()
        page.get_by_label("API key").fill("open sesame")
        page.keyboard.press("Enter")
        ready(page)
        expect(page.get_by_label("API key")).to_have_value("")
        assert not any("sesame" in address for address in addresses)
        assert "sesame" not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
        printed = capfd.readouterr()
        assert "sesame" not in printed.out + printed.err + caplog.text
        refused = httpx.get(page.url, headers={"Host": "evil.example"}, timeout=60)
        assert (refused.status_code, "playground" in refused.text) == (400, False)


def test_a_service_that_is_away_is_told(browser: Browser) -> None:
    with playground(browser, FakeV1(url="http://127.0.0.1:9")) as (page, _):
        expect(page.get_by_text("The service does not answer. Is it running?")).to_be_visible()
