"""Headless Chromium for tests of the page, and a record of every request that the page makes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000
"""How long a page may take to show something, on a machine that has other work."""
expect.set_options(timeout=WAIT_MS)
AXE = Path(__file__).parents[1] / "app/interface/web/node_modules/axe-core/axe.min.js"


@dataclass
class Watch:
    """What a page did besides what one sees."""

    url: str
    outside: list[str] = field(default_factory=list)
    """Requests to other hosts than the service's."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and uncaught exceptions."""

    def attach(self, page: Page) -> None:
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url + "/", "data:", "blob:")):
            self.outside.append(request.url)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


def executable() -> str | None:
    """Where Chromium is. The build that never had windows takes a third of the time of the whole one."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


@contextmanager
def chromium(executable: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, timeout=2 * WAIT_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, url: str) -> Iterator[tuple[Page, Watch]]:
    """The service's page, ready to be typed into."""
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    page.set_default_timeout(WAIT_MS)
    watch = Watch(url)
    watch.attach(page)
    try:
        page.goto(url + "/")
        page.locator("#message").wait_for()
        yield page, watch
    finally:
        page.close()


def ask(page: Page, question: str) -> None:
    """Types a question and sends it."""
    page.locator("#message").fill(question)
    page.keyboard.press("Enter")


def answers(page: Page) -> list[str]:
    """The texts of all answers on the page."""
    return page.locator("#surface .answer .body").all_inner_texts()


def violations(page: Page) -> list[str]:
    """What axe-core finds on the page as it is now: rule, element, and what is wrong."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert len(found["passes"]) > 5, "axe-core has found next to nothing to check"
    return sorted(
        f"{rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    )


def fill_in_tab(page: Page, tab: str, label: str, text: str) -> None:
    """Opens a tab of Gradio's and fills a field: those of a tab that is shown first may be made anew and emptied."""
    page.get_by_role("tab", name=tab).click()
    field = page.get_by_label(label, exact=True)
    while True:
        field.fill(text)
        page.wait_for_timeout(500)
        if field.input_value() == text:
            return
