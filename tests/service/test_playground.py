"""The playground as its users start it, against the real service: each decoding answers, and is measured."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from app.playground.decoding import Decoding
from tests.browser import WAIT_MS, Watch, fill_in_tab
from tests.service.running import ROOT, RunningService

pytestmark = pytest.mark.browser


@pytest.fixture
def url(service: RunningService) -> Iterator[str]:
    command = [sys.executable, "-m", "app.cli", "playground", "--url", service.url, "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.send_signal(signal.SIGINT)
            assert (process.wait(60), process.stderr.read()) == (0, "")


def choose(page: Page, label: str, value: str) -> None:
    page.get_by_label(label).click()
    page.get_by_role("option", name=value, exact=True).click()
    expect(page.get_by_role("option")).to_have_count(0)


def test_every_decoding_answers(service: RunningService, url: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    page.set_default_timeout(WAIT_MS)
    watch = Watch(url.rstrip("/"))
    watch.attach(page)
    page.goto(url)
    expect(page.get_by_label("Model A")).to_have_value(service.model)
    page.get_by_label("Most tokens").fill("12")
    fill_in_tab(page, "Beams", "Beams", "2")  # a worker of the tests has no more places
    fill_in_tab(page, "Contrastive", "Candidates (top-k)", "2")
    decodings = list(Decoding)
    for number, (one, other) in enumerate(zip(decodings[::2], decodings[1::2], strict=True), 1):
        choose(page, "Decoding A", one)
        choose(page, "Decoding B", other)
        page.get_by_role("button", name="New chat").click()
        expect(page.locator("#told-a")).to_be_empty()
        expect(page.locator("#told-b")).to_be_empty()
        page.get_by_label("Question").fill(f"What is the capital of France? ({number})")
        page.keyboard.press("Enter")
        for side in ("a", "b"):
            told = page.locator(f"#told-{side}")
            expect(told).to_contain_text(re.compile(r"first token \d+\.\d\d s, \d+ tokens.*, prompt \d+"))
    expect(page.get_by_text("alive", exact=True).locator("visible=true").first).to_be_visible()
    assert (watch.outside, watch.complaints) == ([], [])
    page.close()
    service.wait_until_idle()
