"""`/login` and `/account` under axe-core: barriers for people who use a screen reader or need contrast."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.service import loopback_server
from tests.browser import WAIT_MS, serious_violations
from tests.sizes import some

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose user ann has one of everything that `/account` shows."""
    site = Site(str(tmp_path_factory.mktemp("site") / "accounts.db"), FakeWorker(lambda _: deltas([5])))
    site.add("ann")
    for worker in site.page_workers:
        worker.answers.update(memory_use=(2, 300_000))
    with loopback_server(site.app) as url:
        yield url
    site.service.close()


@pytest.fixture(params=some([390, 1200], ["dark", "light"]), ids=str)
def page(browser: Browser, url: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=url)
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()


def log_in(page: Page, password: str) -> None:
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def fill(page: Page) -> None:
    """A key, two conversations and another session, for the user logged in on the web page."""
    statuses = page.evaluate(
        """async ([name, password]) => {
            const headers = {"Content-Type": "application/json"};
            const post = (path, body, credentials = "same-origin") =>
                fetch(path, {method: "POST", credentials, headers, body: JSON.stringify(body)});
            return [
                (await post("/v1/keys", {label: "laptop"})).status,
                (await post("/v1/conversations", {metadata: {title: "Of rivers"}})).status,
                (await post("/v1/conversations", {metadata: {title: "Of bridges"}})).status,
                (await post("/v1/auth/login", {name, password}, "omit")).status,
            ];
        }""",
        ["ann", PASSWORD],
    )
    assert statuses == [200] * 4


def test_login(page: Page) -> None:
    page.goto("/login")
    page.get_by_role("button", name="Log in").wait_for()
    assert serious_violations(page) == []
    log_in(page, "not the password")
    expect(page.get_by_role("alert")).to_have_text("Name or password is wrong.")
    expect(page.get_by_role("button", name="Log in")).to_be_enabled()
    assert serious_violations(page) == []


def test_account(page: Page) -> None:
    page.goto("/login?next=/account")
    log_in(page, PASSWORD)
    page.get_by_role("heading", name="ann").wait_for()
    fill(page)
    page.reload()
    for name, least in (("Conversations", 2), ("API keys", 1), ("Sessions", 2)):
        rows = page.get_by_role("region", name=name).get_by_role("listitem")
        rows.nth(least - 1).wait_for()
    expect(page.get_by_text("300 kB of 1 MB, 2 pages")).to_be_visible()
    assert serious_violations(page) == []

    # With everything that comes only when one asks for it.
    page.get_by_label("Label").fill("desktop")
    page.get_by_role("button", name="Add a key").click()
    page.locator("#secret").wait_for()
    page.get_by_role("button", name="Forget all").click()
    page.get_by_role("button", name="Delete everything…").click()
    page.get_by_label("Present password").fill("not the password")
    page.get_by_label("New password").fill("another long password")
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_text("Name or password is wrong.")).to_be_visible()
    assert serious_violations(page) == []


def test_what_is_wrong_is_found(browser: Browser, url: str) -> None:
    page = browser.new_page(base_url=url, color_scheme="light")
    page.goto("/login")
    page.get_by_role("button", name="Log in").wait_for()
    page.evaluate("""() => {
        document.querySelector("h1").style.color = "rgb(200, 200, 200)";
        const name = document.querySelector("#name");
        name.parentElement.replaceWith(name);
    }""")
    found = [violation.partition(":")[0] for violation in serious_violations(page)]
    page.close()
    assert found == ["color-contrast", "label"]
