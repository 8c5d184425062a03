"""`redoubt knowledge` against a service's HTTP, with an encoder that has no model."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError
from openai.resources import files, vector_stores

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
    monkeypatch.setattr(collecting, "_WAIT_S", 0.01)
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


def lost(call: Callable[..., Any], *, times: int, is_carried_out: bool) -> Callable[..., Any]:
    """A call of OpenAI's client of which the first answers do not come, after the service has carried it out or not."""
    left = [None] * times

    def lossy(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()
            if is_carried_out:
                call(*arguments, **named)
            raise APIConnectionError(request=httpx2.Request("POST", "http://127.0.0.1"))
        return call(*arguments, **named)

    return lossy


def test_a_service_that_does_not_answer_for_a_while_gets_all_files(
    ann: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *at, key = ann
    for name, content in (
        ("lease.md", LEASE),
        ("menu.md", MENU),
        ("note.md", b"A note."),
        ("photo.md", b"\xff\xd8\xff"),
    ):
        (tmp_path / "docs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_bytes(content)
    batches = vector_stores.FileBatches
    monkeypatch.setattr(collecting, "_TRIES", sys.maxsize)  # until what was added is read
    monkeypatch.setattr(collecting, "_AT_ONCE", 2)
    monkeypatch.setattr(files.Files, "create", lost(files.Files.create, times=2, is_carried_out=False))
    monkeypatch.setattr(batches, "create", lost(batches.create, times=1, is_carried_out=True))
    monkeypatch.setattr(batches, "retrieve", lost(batches.retrieve, times=1, is_carried_out=False))
    monkeypatch.setattr(vector_stores.Files, "retrieve", None)  # documents are not asked for one by one
    status, output = run("knowledge", "add", str(tmp_path / "docs"), "--to", "House", *at, key=key)
    assert (status, output.count("The service does not answer: waiting for it.\n")) == (1, 3)
    listed = done("knowledge", "list", "House", *at, key=key).splitlines()
    assert sorted(line.split("  ")[1] for line in listed) == ["docs/lease.md", "docs/menu.md", "docs/note.md"]
    assert output.endswith("redoubt: 1 could not be read\n")


def test_a_service_that_is_lost_leaves_a_sentence_of_what_was_added(
    ann: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *at, key = ann
    for name in ("a.md", "b.md", "c.md"):
        (tmp_path / name).write_bytes(MENU)
    begin = files.Files.create

    def create(self: Any, *, file: Path, **named: Any) -> Any:
        if file.name == "c.md":
            raise APIConnectionError(request=httpx2.Request("POST", "http://127.0.0.1"))
        return begin(self, file=file, **named)

    monkeypatch.setattr(collecting, "_AT_ONCE", 2)
    monkeypatch.setattr(collecting, "_TRIES", 3)
    monkeypatch.setattr(files.Files, "create", create)
    named = [str(tmp_path / name) for name in ("a.md", "b.md", "c.md")]
    status, output = run("knowledge", "add", *named, "--to", "House", *at, key=key)
    assert (status, "2 of 3 files were added: when it is there again, add the others." in output) == (2, True)
    assert files_of(at[1], key) == ["a.md", "b.md"]
