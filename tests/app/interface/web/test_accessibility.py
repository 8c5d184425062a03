"""Barriers for people who use a screen reader, keys alone, a phone, or need contrast. Every state under axe-core."""

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.service import loopback_server
from tests.browser import WAIT_MS, ask, open_page, violations
from tests.fake_v1 import MODEL, FakeV1, running
from tests.sizes import some

pytestmark = pytest.mark.browser

MANY_WORDS = [f"word{i} " for i in range(2000)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose user ann has one of everything that `/account` shows."""
    site = Site(str(tmp_path_factory.mktemp("site") / "accounts.db"), FakeWorker(lambda _: deltas([5])))
    site.add("ann", role="admin")
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
    assert violations(page) == []
    log_in(page, "not the password")
    expect(page.get_by_role("alert")).to_have_text("Name or password is wrong.")
    expect(page.get_by_role("button", name="Log in")).to_be_enabled()
    assert violations(page) == []


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
    assert violations(page) == []

    # With everything that comes only when one asks for it.
    collections = page.get_by_role("region", name="Collections")
    collections.get_by_label("Name of a new collection").fill("Contracts")
    collections.get_by_role("button", name="Make a collection").click()
    texts = {"lease.md": b"The rent.", "photo.png": b"\x89PNG\r\n\x1a\n"}
    files = [FilePayload(name=name, mimeType="", buffer=text) for name, text in texts.items()]
    collections.get_by_label("Add files").set_input_files(files)
    expect(collections.get_by_text(re.compile("1 could not be read$"))).to_be_visible()
    collections.get_by_role("button", name="Delete the collection…").click()
    page.get_by_label("Label").fill("desktop")
    page.get_by_role("button", name="Add a key").click()
    page.locator("#secret").wait_for()
    page.get_by_role("button", name="Forget all").click()
    page.get_by_role("button", name="Delete everything…").click()
    page.get_by_role("button", name="Revoke laptop").first.click()
    page.get_by_role("button", name="Delete Of bridges").first.click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    page.get_by_label("Present password").fill("not the password")
    page.get_by_label("New password").fill("another long password")
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_text("Name or password is wrong.")).to_be_visible()
    assert violations(page) == []


def test_what_is_wrong_is_found(browser: Browser, url: str) -> None:
    page = browser.new_page(base_url=url, color_scheme="light")
    page.set_default_timeout(WAIT_MS)
    page.goto("/login")
    page.get_by_role("button", name="Log in").wait_for()
    page.evaluate("""() => {
        document.querySelector("h1").style.color = "rgb(200, 200, 200)";
        const name = document.querySelector("#name");
        name.parentElement.replaceWith(name);
    }""")
    found = [violation.partition(":")[0] for violation in violations(page)]
    page.close()
    assert found == ["color-contrast", "label"]


def answered(page: Page, question: str, count: int = 1) -> None:
    ask(page, question)
    expect(page.locator(".answer .tools")).to_have_count(count)


def test_the_focus_stays_on_the_page(browser: Browser) -> None:
    """Whatever has it and goes away."""
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, watch):
        message, menu = page.locator("#message"), page.locator("summary.bare")
        page.locator(".skip").press("Enter")
        expect(message).to_be_focused()
        answered(page, "One?")
        page.get_by_role("button", name="Settings").press("Enter")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Settings")).to_be_focused()
        menu.press("Enter")
        page.keyboard.press("Escape")
        expect(menu).to_be_focused()
        expect(page.locator(".menu")).to_be_hidden()
        for key in ("Enter", "Escape"):
            menu.press("Enter")
            page.get_by_role("button", name="Rename").press("Enter")
            expect(page.get_by_label("Title")).to_be_focused()
            page.keyboard.press(key)
            expect(menu).to_be_focused()
        menu.press("Enter")
        page.get_by_role("button", name="Pin", exact=True).press("Enter")
        expect(menu).to_be_focused()
        page.get_by_role("button", name="Edit").press("Enter")
        expect(page.get_by_label("Edit the question")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Edit")).to_be_focused()
        page.get_by_role("button", name="Edit").press("Enter")
        page.keyboard.press("Enter")
        expect(page.locator(".question .versions")).to_have_text("2/2")
        expect(message).to_be_focused()
        page.get_by_role("button", name="Retry").press("Enter")
        expect(page.locator(".answer .versions")).to_have_text("2/2")
        expect(message).to_be_focused()
        page.locator(".answer").get_by_role("button", name="Previous version").press("Enter")
        expect(page.locator(".answer").get_by_role("button", name="Next version")).to_be_focused()
        fake.words, fake.pause_s = MANY_WORDS, 0.05
        ask(page, "Count")
        page.get_by_role("button", name="Stop").press("Enter")
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        expect(message).to_be_focused()
        fake.words, fake.pause_s = ["Fine."], 0
        page.get_by_role("navigation").get_by_role("button", name="New chat").click()
        answered(page, "Two?")
        menu.last.press("Enter")
        page.get_by_role("button", name="Delete").press("Enter")
        expect(page.locator(".sidebar .title")).to_be_focused()
        page.get_by_role("button", name="Undo").press("Enter")
        expect(menu.last).to_be_focused()
        assert watch.complaints == []


def test_escape_closes_a_menu_and_no_answer(browser: Browser) -> None:
    with running(FakeV1()) as fake, open_page(browser, fake.url) as (page, _):
        answered(page, "Hello?")
        fake.words, fake.pause_s = MANY_WORDS, 0.05
        ask(page, "Count")
        expect(page.locator(".answer[data-status=writing]")).to_be_visible()
        page.locator("summary.bare").press("Enter")
        page.keyboard.press("Escape")
        expect(page.locator(".menu")).to_be_hidden()
        expect(page.locator(".answer[data-status=writing]")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".answer[data-status=stopped]")).to_be_visible()


def test_an_answer_and_its_end_are_said_once(browser: Browser) -> None:
    words = ["One *word*,", "\n\n```py\nand = 1\n```\n\n", "- more"]
    with running(FakeV1(words=words)) as fake, open_page(browser, fake.url) as (page, _):
        page.evaluate("""() => {
            const place = document.querySelector(".aloud");
            window.said = [];
            new MutationObserver(() => said.push(place.textContent)).observe(place, {
                childList: true, characterData: true, subtree: true });
        }""")
        for count in (1, 2):
            answered(page, "Say it", count)
            expect(page.locator(".aloud")).to_have_text("One word, and = 1 more End of the answer.")
        said = page.evaluate("said")
        assert said.count("One word, and = 1 more End of the answer.") == 2
        assert not [one for one in said if "word" in one and "End" not in one]
        assert page.locator("#surface [role=status], #surface [aria-live]").filter(has_text="word").count() == 1


TWO_MODELS = [MODEL | {"capabilities": ["chat"], "id": f"a-model-with-a-long-name-{size}b"} for size in (8, 70)]
SMALL = """() => [...document.querySelectorAll("#surface :is(button, a, input, select, summary, textarea)")]
    .filter(one => one.checkVisibility({visibilityProperty: true}))
    .filter(one => !one.closest(".body :is(p, li > input), .check input"))
    .map(one => [one.ariaLabel || one.textContent || one.id, one.getBoundingClientRect()])
    .filter(([_, {width, height}]) => width < 44 || height < 44)
    .map(([name, {width, height}]) => `${name}: ${width} x ${height}`)"""
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll("header > *, .model > *:not(.small)")]
        .filter(one => !one.matches(".model")).map(one => one.getBoundingClientRect()).filter(({width}) => width > 0)
        .sort((one, other) => one.left - other.left);
    return boxes.some((box, place) => box.right > (boxes[place + 1]?.left ?? innerWidth) + 0.5);
}"""


@pytest.mark.parametrize(("width", "height"), [(320, 568), (844, 390)])
def test_it_fits_a_phone(browser: Browser, width: int, height: int) -> None:
    with running(FakeV1(words=[RICH])) as fake:
        context = browser.new_context(
            viewport={"width": width, "height": height}, has_touch=True, is_mobile=True, base_url=fake.url
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": TWO_MODELS}))
        page.goto("/")
        expect(page.get_by_label("Model")).to_be_visible()
        assert page.locator(".thread").evaluate("one => one.scrollHeight <= one.clientHeight")
        expect(page.locator(".starters button").last).to_be_in_viewport(ratio=1)
        expect(page.locator("#message")).not_to_be_focused()  # its keyboard would cover the page
        assert (page.evaluate(SMALL), page.evaluate(OVERLAPS)) == ([], False)
        page.locator("#message").tap()
        page.keyboard.type("One")
        page.keyboard.press("Enter")
        page.keyboard.type("line more")
        expect(page.locator("#message")).to_have_value("One\nline more")
        assert fake.asked == []
        page.get_by_role("button", name="Send").tap()
        expect(page.locator(".katex")).to_have_count(2)
        assert (page.evaluate(SMALL), page.evaluate(OVERLAPS)) == ([], False)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Retry").tap()
        expect(page.locator(".thread")).to_be_focused()
        if width < 800:
            page.get_by_role("button", name="Conversations").tap()
            expect(page.get_by_role("navigation").get_by_role("button", name="New chat")).to_be_focused()
            assert page.evaluate(SMALL) == []
            page.get_by_role("button", name="Settings").tap()
            assert page.evaluate(SMALL) == []
            page.keyboard.press("Escape")
            expect(page.locator(".thread")).to_be_focused()
        context.close()


RICH = """# Title

Some `code`, a [link](https://example.com), <kbd>Ctrl</kbd>, a note[^1] and $x^2$.

$$\\color{red}\\frac{\\sqrt[3]{x}}{\\underbrace{\\overline{y}}_{\\cancel{z}}}
\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}$$

1. In a list

   ```python
   print('a')  # b
   ```

| Name | Value | Another | One more | The last |
| - | - | - | -: | - |
| one | two | three | four | five |

| A second | table |
| - | - |
| with | words |

<details>
<summary>More</summary>

Hidden, with <mark>a mark</mark>.

</details>

- [x] done

[^1]: Of it.
"""


@pytest.mark.parametrize(("width", "colours"), some([390, 1440], ["dark", "light"]))
def test_the_page_is_accessible(browser: Browser, colours: Literal["light", "dark"], width: int) -> None:
    """In each of its states."""
    fake = FakeV1(words=[RICH], thoughts=["Hm."], finish_reason="length")
    with running(fake), open_page(browser, fake.url) as (page, watch):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=colours)
        expect(page.locator(".dot.ready")).to_be_visible()
        assert violations(page) == []
        ask(page, "Show it")
        expect(page.locator(".katex")).to_have_count(2)
        expect(page.locator(".hljs-string")).to_be_visible()
        page.get_by_text("Thought", exact=False).first.click()
        page.get_by_text("More", exact=True).click()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        column = page.locator("#surface .column").bounding_box()
        assert column is not None
        assert column["width"] <= 46 * 16
        assert (watch.outside, watch.complaints) == ([], [])
        page.get_by_role("button", name="Edit").click()
        assert violations(page) == []
        page.keyboard.press("Enter")
        expect(page.locator(".question .versions")).to_be_visible()
        expect(page.get_by_role("button", name="Continue")).to_be_visible()
        assert violations(page) == []
        fake.words, fake.pause_s = MANY_WORDS, 0.05
        ask(page, "Count")
        expect(page.locator(".answer[data-status=writing]")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        fake.error = (429, "All places are taken.")
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        ask(page, "Hello?")
        expect(page.get_by_role("alert")).to_be_visible()
        assert violations(page) == []
        open_drawer(page, width)
        page.locator("summary.bare").click()
        assert violations(page) == []
        page.get_by_role("button", name="Rename").click()
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.locator("summary.bare").click()
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("button", name="Undo")).to_be_visible()
        assert violations(page) == []
        page.get_by_role("button", name="Settings").click()
        assert violations(page) == []
        page.keyboard.press("Escape")
        fake.key = "open sesame"
        page.reload()
        expect(page.get_by_label("This service asks for an API key.")).to_be_visible()
        assert violations(page) == []


def open_drawer(page: Page, width: int) -> None:
    if width <= 800:
        page.get_by_role("button", name="Conversations").click()
        expect(page.get_by_role("navigation").get_by_role("button", name="New chat")).to_be_focused()
