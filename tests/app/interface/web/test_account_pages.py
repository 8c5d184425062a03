"""`/login` and `/account` in a browser: the built web pages, over real accounts and a fake worker."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.passwords import new_password
from app.messages.accounts import UserChange
from app.messages.memory import SavedPages
from tests.app.accounts.world import CHEAP, FIRST, choose
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.service import loopback_server
from tests.browser import WAIT_MS, Watch

pytestmark = pytest.mark.browser


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5])))
    site.add("ann")
    yield site
    site.service.close()


@pytest.fixture
def watched(site: Site, browser: Browser) -> Iterator[tuple[Page, Watch]]:
    """A web page at the width of a phone."""
    with loopback_server(site.app) as url:
        page = browser.new_page(viewport={"width": 390, "height": 800}, base_url=url)
        page.set_default_timeout(WAIT_MS)
        watch = Watch(url)
        watch.attach(page)
        yield page, watch
        page.close()


def log_in(page: Page, password: str = PASSWORD, name: str = "ann") -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def is_too_wide(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def test_log_in(watched: tuple[Page, Watch]) -> None:
    page, watch = watched
    page.goto("/account")
    page.wait_for_url(re.compile(r"/login\?next=/account$"))
    assert page.evaluate("document.activeElement.id") == "name"
    log_in(page, "not the password")
    expect(page.get_by_role("alert")).to_have_text("Name or password is wrong.")
    assert not is_too_wide(page)
    assert all("401" in complaint for complaint in watch.complaints)
    watch.complaints.clear()
    log_in(page)
    page.wait_for_url(re.compile("/account$"))
    expect(page.get_by_role("heading", name="ann")).to_be_visible()
    cookie = page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert not is_too_wide(page)
    assert (watch.complaints, watch.outside) == ([], [])


def test_too_many_wrong_passwords_tell_the_wait(watched: tuple[Page, Watch], site: Site) -> None:
    page, _ = watched
    page.goto("/login")
    for _ in range(site.settings.login_failures):
        log_in(page, "not the password")
        expect(page.get_by_role("button", name="Log in")).to_be_enabled()
    log_in(page)
    expect(page.get_by_role("alert")).to_have_text(re.compile(r"Try again in \d+ (second|minute)s?\."))


def test_a_service_whose_accounts_are_down_says_so(watched: tuple[Page, Watch], site: Site) -> None:
    page, _ = watched
    page.goto("/login")
    site.accounts.is_down = True
    log_in(page)
    expect(page.get_by_role("alert")).to_have_text("The service is not available. Try again in a moment.")


def test_the_account(watched: tuple[Page, Watch], site: Site) -> None:
    page, watch = watched
    for worker in site.page_workers:
        worker.answers.update(memory_use=(2, 300_000), flush_memory=SavedPages(3, 450_000, 0))
    page.goto("/login?next=/account")
    log_in(page)

    expect(page.get_by_text("300 kB of 1 MB, 2 pages")).to_be_visible()
    page.get_by_role("button", name="Save now").click()
    expect(page.get_by_text("6 pages saved.")).to_be_visible()
    page.get_by_role("button", name="Forget all").click()
    page.get_by_role("button", name="Keep them").click()
    assert all(call[0] != "forget_memory" for call in site.page_workers[0].calls)
    page.get_by_role("button", name="Forget all").click()
    page.get_by_role("button", name="Destroy the keys").click()
    expect(page.get_by_text(re.compile("^Forgotten: "))).to_be_visible()
    assert any(call[0] == "forget_memory" for call in site.page_workers[0].calls)

    page.get_by_label("Label").fill("<b>laptop</b>")
    page.get_by_label(re.compile("^Days until")).fill("30")
    page.get_by_role("button", name="Add a key").click()
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("rdbt_")
    expect(page.get_by_text("<b>laptop</b>")).to_be_visible()
    assert not is_too_wide(page)
    headers = {"Authorization": f"Bearer {secret}"}
    assert page.request.get("/v1/keys", headers=headers).status == 200
    revoke = page.get_by_role("button", name="Revoke <b>laptop</b>")
    revoke.click()
    page.get_by_role("button", name="Keep it").click()
    expect(revoke).to_be_focused()
    assert page.request.get("/v1/keys", headers=headers).status == 200
    revoke.click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_text("Revoked: <b>laptop</b>.")).to_be_visible()
    assert page.request.get("/v1/keys", headers=headers).status == 401

    page.get_by_label("Present password").fill(PASSWORD)
    page.get_by_label("New password").fill("another long password")
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_text(re.compile("^Changed"))).to_be_visible()

    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page.get_by_text("1 session ended, 0 pages saved.")).to_be_visible()
    assert page.context.cookies() == []
    assert (watch.complaints, watch.outside) == ([], [])
    page.goto("/account")
    page.wait_for_url(re.compile("/login"))


def test_conversations_and_sessions(watched: tuple[Page, Watch]) -> None:
    page, watch = watched
    page.goto("/login?next=/account")
    log_in(page)
    page.wait_for_url(re.compile(r"://[^/]+/account$"))
    for title in ("First", "Second"):
        status = page.evaluate(
            """title => fetch("/v1/conversations", {method: "POST", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({metadata: {title}})}).then(answer => answer.status)""",
            title,
        )
        assert status == 200
    page.reload()
    card = page.get_by_role("region", name="Conversations")
    expect(card.get_by_role("listitem")).to_have_count(2)
    with page.expect_download() as download:
        card.get_by_role("button", name="Export First as Markdown").click()
    assert download.value.suggested_filename.endswith(".md")
    card.get_by_role("button", name="Delete First").press("Enter")
    expect(card.get_by_role("listitem")).to_have_count(1)
    expect(card.get_by_role("button", name="Export Second as Markdown")).to_be_focused()
    card.get_by_role("button", name="Undo").click()
    expect(card.get_by_role("listitem")).to_have_count(2)
    card.get_by_role("button", name="Dismiss").click()
    expect(card.get_by_text("It is back: First.")).to_have_count(0)
    card.get_by_role("button", name="Delete First").click()
    expect(card.get_by_role("listitem")).to_have_count(1)
    card.get_by_role("button", name="Delete everything…").click()
    card.get_by_role("button", name="Delete everything", exact=True).click()
    expect(card.get_by_text("None is stored.")).to_be_visible()
    sessions = page.get_by_role("region", name="Sessions").get_by_role("listitem")
    expect(sessions).to_have_text(
        re.compile(r"^Chrome on Linux \(this one\)Since .*, \d\d:\d\d, last used .*, \d\d:\d\d$")
    )
    limits = page.get_by_role("region", name="Limits")
    expect(limits.get_by_role("listitem").first).to_have_text("Tokens today (UTC)0, no limit")
    expect(limits.get_by_role("progressbar", name="Stored chats")).to_be_visible()
    assert not is_too_wide(page)
    assert not watch.complaints


def test_collections(watched: tuple[Page, Watch], browser: Browser, site: Site, tmp_path: Path) -> None:
    page, watch = watched
    site.add("bob")
    site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(role="admin"))
    folder = tmp_path / "contracts"
    for name, text in {"lease.md": "The rent is 900.", ".hidden": "no", "sub/empty.txt": " "}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    page.goto("/login?next=/account")
    log_in(page)
    card = page.get_by_role("region", name="Collections")
    expect(card.get_by_text("There is none.")).to_be_visible()
    card.get_by_label("Name of a new collection").fill("Contracts")
    card.get_by_role("button", name="Make a collection").click()
    expect(card.get_by_role("button", name="Close Contracts")).to_be_visible()
    card.get_by_label("Add a folder").set_input_files(folder)
    expect(card.get_by_text("2 files added.")).to_be_visible()
    expect(card.get_by_text(re.compile(r"^2 documents, 1 passage, .*, 1 could not be read$"))).to_be_visible()
    expect(card.get_by_text('It could not be read. "empty.txt" is empty.')).to_be_visible()
    assert not is_too_wide(page)
    (folder / "lease.md").write_text("The rent is 950.\\n\\n" * 100)
    card.get_by_label("Add a folder").set_input_files(folder)
    expect(card.get_by_text(re.compile(r"^2 documents, [2-9] passages"))).to_be_visible()
    card.get_by_role("button", name="Remove contracts/sub/empty.txt").click()
    card.get_by_role("button", name="Remove it").press("Enter")
    expect(card.get_by_text("Removed: contracts/sub/empty.txt.")).to_be_visible()
    expect(card.get_by_text(re.compile("^1 document, "))).to_have_count(2)
    card.get_by_label("Name", exact=True).fill("Leases")
    card.get_by_role("button", name="Rename").click()
    expect(card.get_by_role("button", name="Close Leases")).to_be_visible()

    share = card.get_by_label(re.compile("^Share with"))
    share.fill("bob, zoe")
    share.press("Enter")
    expect(card.get_by_text("There is no user zoe.")).to_be_visible()
    assert all("400" in complaint for complaint in watch.complaints)
    watch.complaints.clear()
    share.fill("bob")
    share.press("Enter")
    expect(card.get_by_role("list", name="Shared with").get_by_role("listitem")).to_have_count(1)
    bob = browser.new_page(base_url=watch.url)
    bob.set_default_timeout(WAIT_MS)
    bob.goto("/login?next=/account")
    log_in(bob, name="bob")
    his = bob.get_by_role("region", name="Collections")
    expect(his.get_by_text("shared with you")).to_be_visible()
    his.get_by_role("button", name="Open Leases").click()
    expect(his.get_by_text("lease.md")).to_be_visible()
    expect(his.get_by_role("button", name=re.compile("Remove|Delete|Rename|Add"))).to_have_count(0)
    site.add("eve", role="admin")
    site.inside.users.change(OPERATOR_ACTS, "ann", UserChange(role="user"))  # who shares nothing more, and withdraws
    later = browser.new_page(base_url=watch.url)
    later.set_default_timeout(WAIT_MS)
    later.goto("/login?next=/account")
    log_in(later)
    hers = later.get_by_role("region", name="Collections")
    hers.get_by_role("button", name="Open Leases").click()
    hers.get_by_role("button", name="Withdraw from bob").click()
    expect(hers.get_by_text("bob can open it no more.")).to_be_visible()
    expect(hers.get_by_label(re.compile("^Share with"))).to_have_count(0)
    later.context.close()
    bob.reload()
    expect(his.get_by_text("There is none.")).to_be_visible()
    bob.context.close()

    card.get_by_role("button", name="Delete the collection…").click()
    card.get_by_role("button", name="Keep it").click()
    expect(card.get_by_role("button", name="Delete the collection…")).to_be_focused()
    card.get_by_role("button", name="Delete the collection…").click()
    card.get_by_role("button", name="Destroy its key").click()
    expect(card.get_by_text("Deleted: Leases. Its key is destroyed.")).to_be_visible()
    assert page.request.get("/v1/files").json()["data"] == []
    assert (watch.complaints, watch.outside) == ([], [])


def test_a_lost_recovery_code_is_replaced(watched: tuple[Page, Watch], site: Site) -> None:
    page, watch = watched
    page.goto("/login?next=/account")
    log_in(page)
    card = page.get_by_role("region", name="Recovery code")
    card.get_by_label("Your password").fill("not the password")
    card.get_by_role("button", name="Make a new code").click()
    expect(card.get_by_text("Name or password is wrong.")).to_be_visible()
    assert all("401" in complaint for complaint in watch.complaints)
    watch.complaints.clear()
    card.get_by_label("Your password").fill(PASSWORD)
    card.get_by_role("button", name="Make a new code").click()
    expect(card.locator("#code")).to_have_text(re.compile(r"^([A-Z2-7]{4}-){7}[A-Z2-7]{4}$"))
    code = card.locator("#code").inner_text()
    expect(card.get_by_label("Your password")).to_have_value("")
    assert not is_too_wide(page)
    page.reload()
    expect(card.get_by_role("button", name="Make a new code")).to_be_visible()
    assert code not in page.content()
    assert (watch.complaints, watch.outside) == ([], [])
    site.inside.users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    choose(site.inside, "ann", code)  # raises if it is not the one that keeps what was saved


def test_the_first_login_chooses_a_password_and_shows_the_code(watched: tuple[Page, Watch], site: Site) -> None:
    page, _ = watched
    site.inside.users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    page.goto("/login?next=/account")
    log_in(page, FIRST)
    expect(page.get_by_role("heading", name="Choose your own password")).to_be_visible()
    assert not is_too_wide(page)
    assert page.request.get("/v1/keys").status == 403
    page.get_by_label("New password").fill("a password of my own")
    page.get_by_label("Once more").fill("another password")
    page.get_by_label("I have lost the code").check()
    page.get_by_role("button", name="Choose it").click()
    expect(page.get_by_text("These were two different passwords.")).to_be_visible()
    page.get_by_label("Once more").fill("a password of my own")
    page.get_by_role("button", name="Choose it").click()
    expect(page.locator("#code")).to_have_text(re.compile(r"^([A-Z2-7]{4}-){7}[A-Z2-7]{4}$"))
    page.get_by_role("button", name="I have it").click()
    expect(page.get_by_role("heading", name="ann")).to_be_visible()
