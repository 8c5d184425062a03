"""`/operator` in a browser: what an administrator sees, that it updates, and who does not see it."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx2
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.workers import WorkerRow
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import CHAT, PASSWORD, Site
from tests.app.interface.users.test_capacity import CAPACITY
from tests.app.service import WORKER, http_app, loopback_server
from tests.browser import WAIT_MS, Watch, violations
from tests.sizes import some

pytestmark = pytest.mark.browser

BUSY = replace(WORKER, worker_id="busy1", running=2, waiting=3, kv_pages=4096, kv_pages_free=1024, kv_pages_cached=900)
SILENT = replace(WORKER, worker_id="silent1", state="stale", check_heart_beat=False, saved_bytes=None)


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    return [ZeroDivisionError()] if request.max_new_tokens == 2 else list(deltas([5, 6]))


class Operated:
    """A service with two workers, its administrator root and its user ann, who has had one answer and one error."""

    def __init__(self, database: Path) -> None:
        worker = FakeWorker(script)
        self.rows: tuple[WorkerRow, ...] = (BUSY, SILENT)
        self.site = Site(str(database), worker)
        self.site.app = http_app(worker.generate, workers=lambda: self.rows, accounts=self.site.gate)
        self.site.add("root", role="admin")
        self.ann = self.site.add("ann").info

    def begin(self, url: str) -> None:
        """Requests of ann."""
        with httpx2.Client(base_url=url, timeout=60) as client:
            login = client.post("/v1/auth/login", json={"name": "ann", "password": PASSWORD})
            headers = {"Authorization": f"Bearer {login.json()['token']}"}
            statuses = [
                client.post("/v1/chat/completions", json=CHAT | {"max_tokens": count}, headers=headers).status_code
                for count in (9, 2)
            ]
            assert statuses == [200, 500]


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    operated = Operated(tmp_path_factory.mktemp("site") / "accounts.db")
    yield operated
    operated.site.service.close()


@pytest.fixture(scope="module")
def url(operated: Operated) -> Iterator[str]:
    with loopback_server(operated.site.app) as url:
        operated.begin(url)
        yield url


Scheme = Literal["light", "dark"]


def opened(browser: Browser, url: str, name: str = "root", *, width: int = 1200, scheme: Scheme = "light") -> Page:
    """The web page, opened by way of the login."""
    page = browser.new_page(viewport={"width": width, "height": 900}, base_url=url, color_scheme=scheme)
    page.set_default_timeout(WAIT_MS)
    page.goto("/operator")
    page.wait_for_url(re.compile(r"/login\?next=/operator$"))
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("://[^/]+/operator$"))
    return page


def values(page: Page, table: str, place: int = 0) -> list[str]:
    row = page.get_by_role("table", name=table).get_by_role("row").nth(place + 1)
    return [" ".join(text.split()) for text in row.get_by_role("cell").all_inner_texts()]


def look(page: Page) -> None:
    """Makes the web page refresh now, as when it becomes visible."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def is_too_wide(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def test_an_administrator_sees_the_service(browser: Browser, url: str) -> None:
    page = opened(browser, url)
    watch = Watch(url)
    watch.attach(page)
    page.get_by_role("table", name="Users").wait_for()
    service = page.get_by_role("region", name="Service")
    for shown in ("1 of 2", "2 of 2", "8.5", "1.2.3", "i1"):
        expect(service.get_by_text(shown, exact=True).first).to_be_visible()
    *who, state = values(page, "Workers")[:3]
    assert who == ["busy1 here, scalar", "tiny"]
    assert re.fullmatch(r"Up for \d+ d( \d+ h)?", state)
    assert values(page, "Workers")[3:6] == ["2 of 2", "3 of 4", "3,072 of 4,096 900 cached"]
    assert values(page, "Workers", 1)[2] == "Silent"
    assert values(page, "Workers", 1)[-1] == "Not counted yet of 9 kB"
    assert values(page, "Models")[:4] == ["tiny", "1", "2", "3"]
    assert values(page, "Errors")[1:4] == ["401", "invalid_api_key", "GET /v1/auth/session"]
    page.get_by_label("Refusals too").uncheck()
    time, *failure = values(page, "Errors")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time)
    assert failure[:3] == ["500", "internal_error", "POST /v1/chat/completions"]
    assert failure[3].startswith("ann ")
    assert failure[4].startswith("req-")

    assert [values(page, "Users", place)[0] for place in (0, 1)] == ["ann", "root"]
    assert values(page, "Users")[4] == "2"
    header = page.get_by_role("table", name="Users").get_by_role("columnheader", name="User", exact=True)
    page.get_by_role("button", name="User", exact=True).click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="User", exact=True).click()
    assert [values(page, "Users", place)[0] for place in (0, 1)] == ["root", "ann"]
    expect(header).to_have_attribute("aria-sort", "descending")
    assert not is_too_wide(page)
    page.get_by_role("link", name="Account").click()
    page.get_by_role("link", name="the operator's page").click()
    expect(page.get_by_role("heading", name="Operator")).to_be_visible()
    assert (watch.complaints, watch.outside) == ([], [])
    page.close()


def test_it_follows_the_service_and_waits_while_it_is_gone(browser: Browser, url: str, operated: Operated) -> None:
    page = opened(browser, url)
    workers = page.get_by_role("region", name="Workers")
    expect(workers.get_by_text("busy1")).to_be_visible()
    before, operated.rows = operated.rows, (replace(WORKER, worker_id="new1"),)
    expect(workers.get_by_text("new1")).to_be_visible()
    expect(workers.get_by_text("busy1")).to_be_hidden()
    page.context.set_offline(True)
    look(page)
    expect(page.get_by_text("Reconnecting. The service cannot be reached.")).to_be_visible()
    expect(workers.get_by_text("new1")).to_be_visible()
    assert violations(page) == []
    page.context.set_offline(False)
    look(page)
    expect(page.get_by_text("Reconnecting.")).to_be_hidden()
    operated.site.accounts.is_down = True
    look(page)
    expect(page.get_by_text("its accounts do not answer")).to_be_visible()
    operated.site.accounts.is_down = False
    look(page)
    expect(page.get_by_text("Reconnecting.")).to_be_hidden()
    operated.rows = before
    page.close()


def test_several_ingresses_that_answer_in_turn_are_shown_together(browser: Browser, url: str) -> None:
    page = opened(browser, url)
    ids = deque(["i1"])

    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        body["ingress"] |= {"replicas": 2, "id": ids[0]}
        ids.rotate()
        route.fulfill(response=response, json=body)

    page.route("**/v1/admin/overview", answer)
    page.reload()
    expect(page.get_by_text("1 of 2 ingresses have answered")).to_be_visible()
    ids.appendleft("i2")
    look(page)
    expect(page.get_by_text("2 of 2 ingresses have answered")).to_be_visible()
    assert [values(page, "Ingresses", place)[0] for place in (0, 1)] == ["i1", "i2"]
    page.get_by_label("Refusals too").uncheck()
    assert {values(page, "Errors", place)[4] for place in (0, 1)} == {"i1", "i2"}
    assert violations(page) == []
    page.unroute_all(behavior="wait")  # the page asks every other second
    page.close()


def test_capacity_is_computed_when_it_is_asked_for(browser: Browser, url: str, operated: Operated) -> None:
    page = opened(browser, url)
    watch = Watch(url)
    watch.attach(page)
    capacity = page.get_by_role("region", name="Capacity")
    capacity.get_by_role("button", name="Compute").click()
    expect(capacity.get_by_text("No worker that is up has measured itself.")).to_be_visible()
    before = operated.rows
    operated.rows = (replace(BUSY, tier="avx512_vnni", max_context_tokens=4096, max_running=64, capacity=CAPACITY),)
    capacity.get_by_label("Users").fill("15")
    capacity.get_by_role("button", name="Compute").click()
    expect(capacity.get_by_role("columnheader", name="Serves 15")).to_be_visible(timeout=150_000)
    model, workers, *_, users, serves, limit = values(page, "Capacity")
    assert (model, workers, serves) == ("tiny", "1", "yes")
    assert int(users) >= 15
    assert limit == "engine.kv_memory_bytes", "the machine has 8 GiB left, and histories do not fit into the pages"
    capacity.get_by_text("machines of the table would serve 15 users of tiny").click()
    expect(capacity.get_by_text("AMD EPYC 9354")).to_be_visible()
    assert not is_too_wide(page)
    assert violations(page) == []
    assert (watch.complaints, watch.outside) == ([], [])
    operated.rows = before
    page.close()


def test_nobody_else_sees_it(browser: Browser, url: str) -> None:
    page = opened(browser, url, "ann")
    expect(page.get_by_role("alert")).to_have_text("This page is for administrators only.")
    assert page.get_by_role("table").count() == 0
    page.get_by_role("link", name="Account").click()
    expect(page.get_by_role("heading", name="ann")).to_be_visible()
    assert page.get_by_role("link", name="the operator's page").count() == 0
    page.close()


@pytest.mark.parametrize(("width", "scheme"), some([390, 1200], ["dark", "light"]))
def test_accessibility(browser: Browser, url: str, width: int, scheme: Scheme) -> None:
    page = opened(browser, url, width=width, scheme=scheme)
    page.get_by_role("table", name="Users").wait_for()
    assert not is_too_wide(page)
    assert violations(page) == []
    assert values(page, "Models")[:4] == ["tiny", "1", "2", "3"], "cards are rows of a table too"
    page.close()
