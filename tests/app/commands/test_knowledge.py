"""`redoubt knowledge` against a service's HTTP, with an encoder that has no model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.commands import collecting
from app.interface.users import collection_routes
from tests.app.commands.test_accounts import done, run
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import PASSWORD, Site
from tests.app.interface.users.test_vector_stores import LEASE, MENU, Fruit
from tests.app.service import loopback_server


@pytest.fixture
def ann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Where and as whom a command works."""
    monkeypatch.setattr(collection_routes, "Encoders", lambda *_: Fruit())
    monkeypatch.setattr(collecting, "_LOOK_S", 0.01)
    site = Site(str(tmp_path / "accounts.db"), FakeWorker(lambda _: deltas([5, 6])))
    site.add("ann")
    with loopback_server(site.app) as url:
        yield "--url", url, done("key", "add", "--url", url, "--as", "ann", lines=f"{PASSWORD}\n").strip()
    site.service.close()


def files_of(url: str, key: str) -> list[str]:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        return sorted(one.filename for one in client.files.list())


def test_a_folder_is_added_asked_and_replaced(ann: tuple[str, ...], tmp_path: Path) -> None:
    *at, key = ann
    folder = tmp_path / "docs"
    (folder / ".git").mkdir(parents=True)
    for name, content in {
        "lease.md": LEASE,
        "menu.md": MENU,
        ".git/config": b"x",
        "photo.md": b"\xff\xd8\xff\xe0",
    }.items():
        (folder / name).write_bytes(content)
    status, output = run("knowledge", "add", str(folder), "--to", "House", *at, key=key)
    assert status == 1
    assert f"{folder}/photo.md: " in output
    assert "redoubt: 1 could not be read" in output
    assert files_of(at[1], key) == ["lease.md", "menu.md"]
    (lines,) = done("knowledge", "list", *at, key=key).splitlines()
    assert lines.endswith("  House  2 documents")
    first, *_ = done("knowledge", "search", "House", "how high is the deposit of the hall?", *at, key=key).splitlines()
    assert first.startswith("lease.md (")

    (folder / "photo.md").unlink()
    (folder / "menu.md").write_bytes(b"# Canteen\n\nOn Mondays there is rice.\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "menu.md").write_bytes(b"# Bar\n\nOnly water.\n")
    done("knowledge", "add", str(folder), str(other), "--to", "House", *at, key=key)
    assert files_of(at[1], key) == ["lease.md", "menu.md", "menu.md"], "what was replaced is gone with its file"
    listed = done("knowledge", "list", "House", *at, key=key).splitlines()
    assert sorted(line.split("  ")[1] for line in listed) == ["docs/lease.md", "docs/menu.md", "other/menu.md"]
    found = done("knowledge", "search", "House", "On Mondays there is rice", *at, key=key)
    assert "rice" in found
    assert "lentil" not in found

    status, output = run("knowledge", "rm", "House", *at, key=key, lines="n\n")
    assert (status, "nothing was deleted" in output) == (1, True)
    assert done("knowledge", "rm", "House", "--yes", *at, key=key) == "Deleted with its files: House\n"
    assert files_of(at[1], key) == []
    assert "There is no collection House" in run("knowledge", "list", "House", *at, key=key)[1]
