"""The pictures of docs/images: what Chromium shows of a service with users and the embedded model.

python -m tests.pictures [FOLDER]    (`make pictures`; a minute; it starts the service, and stops it)

It knows nothing of the pages but what a person sees. The answers are the model's own, at temperature 0.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.app.accounts.world import FIRST
from tests.browser import ask, chromium, executable
from tests.service.operator import ROOT_PASSWORD, choose_password, configure_accounts, done, log_in
from tests.service.running import ROOT, RunningService, starting_service

MODEL = ROOT / "models/smollm2-135m-instruct"
MOST_BYTES = 150_000
"""Of a picture, so that the repository stays small."""
PASSWORD = "the password of ann"
QUESTIONS = ("What is the capital of France?", "Write a Python function that checks whether a number is even.")
EARLIER = ("A polite reply that declines an invitation", "Sorting in Python", "Questions before signing a lease")
DESKTOP, PHONE = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=780)


def pictures(site: RunningService, browser: Browser, folder: Path) -> None:
    """Writes chat.png, chat-dark.png, chat-phone.png and account.png."""
    _add_ann(site)
    with _as_ann(site, browser, DESKTOP, "light") as page:
        chat = _chat(page)
        _take(page, folder / "chat.png")
        page.goto(f"{site.url}/account")
        page.get_by_role("heading", name="API keys").wait_for()
        _take(page, folder / "account.png")
    with _as_ann(site, browser, DESKTOP, "dark") as page:
        _reopen(page, chat)
        _take(page, folder / "chat-dark.png")
    with _as_ann(site, browser, PHONE, "light") as page:
        _reopen(page, chat)
        _take(page, folder / "chat-phone.png")


def _add_ann(site: RunningService) -> None:
    """A user with an API key, some chats and saved pages."""
    url = ("--url", site.url)
    done("user", "add", "ann", *url, "--as", "root", lines=f"{ROOT_PASSWORD}\n{FIRST}\n")
    choose_password(site.url, "ann", PASSWORD)
    done("key", "add", "--label", "laptop", *url, "--as", "ann", lines=f"{PASSWORD}\n")
    headers = {"Authorization": f"Bearer {log_in(site, 'ann', PASSWORD)}"}
    with httpx.Client(base_url=f"{site.url}/v1", headers=headers, timeout=120) as ann:
        for title in EARLIER:
            made = ann.post("/conversations", json={"metadata": {"title": title}}).raise_for_status().json()
            turn = {"model": site.model, "conversation": made["id"], "input": title, "max_output_tokens": 16}
            ann.post("/responses", json=turn).raise_for_status()
        ann.post("/memory/save").raise_for_status()


@contextmanager
def _as_ann(
    site: RunningService, browser: Browser, size: ViewportSize, scheme: Literal["light", "dark"]
) -> Iterator[Page]:
    context = browser.new_context(viewport=size, color_scheme=scheme)
    try:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{site.url}/login")
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.locator("#message").wait_for()
        yield page
    finally:
        context.close()


def _chat(page: Page) -> str:
    """Asks the questions; returns the chat's address."""
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    for count, question in enumerate(QUESTIONS, 1):
        ask(page, question)
        expect(page.locator(".answer .tools")).to_have_count(count, timeout=120_000)
    page.wait_for_url("**/c/*")
    return page.url


def _reopen(page: Page, chat: str) -> None:
    page.goto(chat)
    expect(page.locator(".answer .tools")).to_have_count(len(QUESTIONS))


def _take(page: Page, path: Path) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(1000)  # what fades in has, and fonts have come
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes", flush=True)
    if size > MOST_BYTES:
        raise SystemExit(f"{path} is larger than {MOST_BYTES:,} bytes")


def main(folder: Path) -> None:
    """Starts the service, takes the pictures, and stops it."""
    found = executable()
    if found is None:
        raise SystemExit("chromium is needed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        configure_accounts(place, {"worker": {"ray_num_cpus": 0.5}, "memory": {"folder": str(place / "pages")}})
        with (
            starting_service(place / "service.yaml", place / "log", MODEL.name, "--model", str(MODEL)) as site,
            chromium(found) as browser,
        ):
            pictures(site, browser, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images")
