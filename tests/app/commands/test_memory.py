"""`redoubt memory`: against a service's HTTP, and on a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.commands.test_accounts import done, mistake, run
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.memory.test_check import folder_of_pages
from tests.app.service import loopback_server


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Site, list[str]]]:
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5])))
    site.add("ann")
    with loopback_server(site.app) as url:
        yield site, ["--url", url, "--as", "ann"]
    site.service.close()


def test_show_and_forget(site: tuple[Site, list[str]]) -> None:
    service, at = site
    service.page_workers[0].answers["memory_use"] = (1234, 5_600_000)
    assert done("memory", "show", *at, lines=f"{PASSWORD}\n") == "1,234 pages, 5.6 MB of 1.0 MB\n"
    assert "say what to forget" in mistake("memory", "forget", *at)
    status, output = run("memory", "forget", "--all", *at, lines="n\n")
    assert (status, "nothing was forgotten" in output) == (1, True)
    assert not [call for call in service.page_workers[0].calls if call[0] == "forget_memory"]
    service.page_workers[0].answers["forget_memory"] = 7
    output = done("memory", "forget", "--all", "--yes", *at, lines=f"{PASSWORD}\n")
    assert "Forgotten: 0 conversations, 7 files removed." in output
    assert "no such conversation" in mistake(
        "memory", "forget", "--conversation", "x/y", "--yes", *at, lines=f"{PASSWORD}\n"
    )


def test_check(tmp_path: Path) -> None:
    files = folder_of_pages(tmp_path)
    output = done("memory", "check", str(tmp_path))
    assert "6 pages of 2 users" in output
    files[0].write_bytes(b"")
    status, output = run("memory", "check", str(tmp_path))
    assert status == 1
    assert f"{files[0]}: it " in output
    assert "1 entries are no pages" in output
    assert "No such file" in mistake("memory", "check", str(tmp_path / "none"))
