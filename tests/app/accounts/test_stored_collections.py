"""Collections: who may search and change them, documents while they are read, and what deleting leaves."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, select

from app.accounts import tables
from app.accounts.passwords import new_password
from app.messages.accounts import AccountsError, UserChange
from app.messages.knowledge import (
    READ_LEASE_S,
    DocumentCounts,
    NewDocument,
    PassagesPart,
    StoredCollection,
    key_purpose,
)
from app.sealing.records import unseal
from app.settings.accounts import BatchSettings
from tests.app.accounts.world import CHEAP, FIRST, World, choose, prepare

KEY = os.urandom(32)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(prepare(str(tmp_path / "accounts.db")))
    for name, role in (("anna", "admin"), ("bert", "user"), ("carl", "user")):
        world.add(name, role=role)
    yield world
    world.accounts.close()


@pytest.fixture
def anna(world: World) -> str:
    return world.log_in("anna")


@pytest.fixture
def bert(world: World) -> str:
    return world.log_in("bert")


def _refused(code: str) -> "pytest.RaisesExc[AccountsError]":
    return pytest.RaisesExc(AccountsError, check=lambda error: error.refusal.code == code)


def _filled(world: World, secret: str, parts: int = 1, file_id: str = "file-1") -> int:
    """A collection vs_1 with a document; its number."""
    world.accounts.stored_collections.new(secret, "vs_1", KEY, b"name")
    [number] = _added(world, secret, file_id)
    stored = world.accounts.stored_documents
    for seq in range(parts):
        stored.add_passages(secret, "vs_1", number, [PassagesPart(seq, b"passages %d" % seq)])
    stored.end(secret, "vs_1", number, "completed", b"read")
    return number


def _key_of(world: World, secret: str, collection: StoredCollection) -> bytes:
    """As the ingress opens it."""
    texts_key = world.accounts.logins.identify(secret).texts_key
    return unseal(texts_key, collection.sealed_key, key_purpose(collection.id))


def _added(world: World, secret: str, *file_ids: str, batch: str | None = None) -> list[int]:
    """The numbers of documents that are added to vs_1."""
    new = [NewDocument(file_id, b"document") for file_id in file_ids]
    return [one.number for one in world.accounts.stored_documents.add(secret, "vs_1", batch, new)]


def test_a_collection_is_read_back_with_its_key(world: World, anna: str) -> None:
    number = _filled(world, anna, parts=3)
    stored = world.accounts.stored_collections
    found = stored.get(world.log_in("anna"), "vs_1")
    assert (found.sealed, found.is_mine, found.counts) == (b"name", True, DocumentCounts(completed=1))
    assert _key_of(world, anna, found) == KEY
    assert stored.new(anna, "vs_1", KEY, b"again").sealed == b"name"
    documents = world.accounts.stored_documents
    parts = [part.sealed for part in documents.passages(anna, "vs_1", number, -1)]
    assert parts == [b"passages 0", b"passages 1", b"passages 2"]
    assert [part.seq for part in documents.passages(anna, "vs_1", number, 1)] == [2]
    assert found.sealed_bytes == len(b"nameread") + sum(map(len, parts))


def test_nobody_else_finds_it(world: World, anna: str, bert: str) -> None:
    number = _filled(world, anna)
    _added(world, anna, "file-3", batch="vsfb_1")
    stored, documents = world.accounts.stored_collections, world.accounts.stored_documents
    assert stored.listed(bert, None, 10, newest_first=True) == []
    tries = (
        lambda: stored.get(bert, "vs_1"),
        lambda: stored.change(bert, "vs_1", b"mine"),
        lambda: stored.delete(bert, "vs_1"),
        lambda: stored.members(bert, "vs_1"),
        lambda: stored.share(bert, "vs_1", ["bert"]),
        lambda: _added(world, bert, "file-2"),
        lambda: documents.keep(bert, "vs_1", [number]),
        lambda: documents.add_passages(bert, "vs_1", number, []),
        lambda: documents.end(bert, "vs_1", number, "failed", b""),
        lambda: documents.change(bert, "vs_1", number, b"mine"),
        lambda: documents.listed(bert, "vs_1", None, 10, newest_first=True, batch_id=None),
        lambda: documents.get(bert, "vs_1", "file-1"),
        lambda: documents.passages(bert, "vs_1", number, -1),
        lambda: documents.delete(bert, "vs_1", "file-1"),
        lambda: documents.batch(bert, "vs_1", "vsfb_1"),
        lambda: documents.cancel(bert, "vs_1", "vsfb_1"),
        lambda: documents.batch(anna, "vs_1", "vsfb_2"),
        lambda: stored.listed(bert, "vs_1", 10, newest_first=True),
    )
    for each in tries:
        with _refused("not_found"):
            each()
    with _refused("conflict"):
        stored.new(bert, "vs_1", KEY, b"mine")


def test_shared_ones_are_searched_and_not_changed(world: World, anna: str, bert: str) -> None:
    number = _filled(world, anna)
    stored, documents = world.accounts.stored_collections, world.accounts.stored_documents
    assert stored.share(anna, "vs_1", ["bert", "Anna"]) == ["bert"]
    found = stored.listed(bert, None, 10, newest_first=True)
    assert [(_key_of(world, bert, one), one.is_mine) for one in found] == [(KEY, False)]
    assert documents.passages(bert, "vs_1", number, -1)
    assert stored.members(anna, "vs_1") == ["bert"]
    for each in (
        lambda: stored.change(bert, "vs_1", b"mine"),
        lambda: _added(world, bert, "file-2"),
        lambda: documents.change(bert, "vs_1", number, b"mine"),
        lambda: documents.delete(bert, "vs_1", "file-1"),
        lambda: stored.delete(bert, "vs_1"),
        lambda: stored.members(bert, "vs_1"),
    ):
        with _refused("owner_only"):
            each()
    assert stored.share(anna, "vs_1", []) == []
    with _refused("not_found"):
        stored.get(bert, "vs_1")
    stored.share(anna, "vs_1", ["carl"])
    world.accounts.users.delete(world.accounts.actor(anna), "carl")
    assert stored.members(anna, "vs_1") == []


def test_no_answer_has_a_key_that_is_open(world: World, anna: str, bert: str) -> None:
    """Ray may spill what is as large as a list."""
    stored = world.accounts.stored_collections
    answers: list[object] = [stored.new(anna, "vs_1", KEY, b"name"), stored.change(anna, "vs_1", b"name")]
    stored.share(anna, "vs_1", ["bert"])
    answers += [stored.listed(secret, None, 10, newest_first=True) for secret in (anna, bert)]
    answers += [stored.get(secret, "vs_1") for secret in (anna, bert)]
    assert [each for each in answers if KEY in pickle.dumps(each)] == []


def test_who_shares_and_with_whom(world: World, anna: str, bert: str) -> None:
    stored = world.accounts.stored_collections
    stored.new(bert, "vs_2", KEY, b"name")
    with _refused("admin_only"):
        stored.share(bert, "vs_2", ["anna"])
    stored.new(anna, "vs_1", KEY, b"name")
    with pytest.raises(AccountsError, match="no user zoe"):
        stored.share(anna, "vs_1", ["bert", "zoe"])
    assert stored.members(anna, "vs_1") == []
    # an administrator no more: withdraws, and shares with nobody new
    world.log_in("carl")
    stored.share(anna, "vs_1", ["bert", "carl"])
    users, actor = world.accounts.users, world.accounts.actor(anna)
    users.change(actor, "carl", UserChange(role="admin"))
    users.change(actor, "anna", UserChange(role="user"))
    assert stored.share(anna, "vs_1", ["bert"]) == ["bert"]
    assert _key_of(world, bert, stored.get(bert, "vs_1")) == KEY
    for name in ("carl", "zoe"):  # nor does she learn who is a user
        with _refused("admin_only"):
            stored.share(anna, "vs_1", ["bert", name])
    assert stored.share(anna, "vs_1", []) == []


def test_a_new_key_of_the_user_opens_nothing_shared(world: World, anna: str, bert: str) -> None:
    _filled(world, anna)
    stored, users = world.accounts.stored_collections, world.accounts.users
    stored.share(anna, "vs_1", ["bert"])
    users.reset_password(world.accounts.actor(anna), "bert", new_password(FIRST, CHEAP))
    choose(world.accounts, "bert")
    bert = world.log_in("bert")
    assert stored.listed(bert, None, 10, newest_first=True) == []
    stored.share(anna, "vs_1", ["bert"])
    assert _key_of(world, bert, stored.get(bert, "vs_1")) == KEY


def test_a_document_is_read_by_one(world: World, anna: str) -> None:
    stored = world.accounts.stored_documents
    world.accounts.stored_collections.new(anna, "vs_1", KEY, b"name")
    [first] = _added(world, anna, "file-1")
    stored.add_passages(anna, "vs_1", first, [PassagesPart(0, b"passages")])
    with _refused("conflict"):
        _added(world, anna, "file-2", "file-1")
    with _refused("not_found"):  # not before it is complete
        stored.passages(anna, "vs_1", first, -1)
    world.clock.now_s += READ_LEASE_S - 1
    stored.add_passages(anna, "vs_1", first, [PassagesPart(1, b"more")])
    world.clock.now_s += READ_LEASE_S - 1
    assert not stored.get(anna, "vs_1", "file-1").is_abandoned
    assert stored.keep(anna, "vs_1", [first, 99]) == [first]
    world.clock.now_s += READ_LEASE_S - 1
    assert not stored.get(anna, "vs_1", "file-1").is_abandoned
    world.clock.now_s += 1
    assert stored.get(anna, "vs_1", "file-1").is_abandoned
    [second] = _added(world, anna, "file-1")
    assert second != first
    assert stored.keep(anna, "vs_1", [first, second]) == [second]
    with _refused("conflict"):
        stored.add_passages(anna, "vs_1", first, [])
    with _refused("conflict"):
        stored.end(anna, "vs_1", first, "completed", b"")
    part = PassagesPart(0, b"passages")
    for _ in range(2):  # an answer was lost
        stored.add_passages(anna, "vs_1", second, [part])
    ended = stored.end(anna, "vs_1", second, "completed", b"read")
    assert (ended.parts, ended.sealed_bytes) == (1, len(b"passagesread"))
    listed = stored.listed(anna, "vs_1", None, 10, newest_first=True, batch_id=None)
    assert [one.file_id for one in listed] == ["file-1"]


def test_a_document_is_searched_until_it_is_read_again(world: World, anna: str) -> None:
    stored, collections = world.accounts.stored_documents, world.accounts.stored_collections
    first = _filled(world, anna)

    def searched() -> list[tuple[int, str]]:
        found = stored.listed(anna, "vs_1", None, 10, newest_first=False, only="searched")
        assert all(stored.passages(anna, "vs_1", one.number, -1) for one in found)
        return [(one.number, one.state) for one in found]

    def begin(batch: str | None = None) -> int:
        [one] = stored.add(anna, "vs_1", batch, [NewDocument("file-1", b"again")])
        stored.add_passages(anna, "vs_1", one.number, [PassagesPart(0, b"newer")])
        assert (one.former, searched()) == (
            stored.listed(anna, "vs_1", None, 1, True, None, "searched")[0].sealed,
            before,
        )
        assert collections.get(anna, "vs_1").counts == DocumentCounts(in_progress=1)
        return one.number

    before = [(first, "completed")]
    ended = stored.end(anna, "vs_1", begin(), "failed", b"not again")
    assert (ended.number, ended.state, ended.sealed, searched()) == (first, "completed", b"not again", before)
    assert collections.get(anna, "vs_1").sealed_bytes == len(b"namenot againpassages 0")
    begin("vsfb_1")
    assert stored.cancel(anna, "vs_1", "vsfb_1").counts == DocumentCounts(completed=1)
    assert searched() == before
    begin()
    world.clock.now_s += READ_LEASE_S
    second = begin()  # its ingress had died
    stored.end(anna, "vs_1", second, "completed", b"read")
    assert searched() == [(second, "completed")]
    with _refused("not_found"):
        stored.passages(anna, "vs_1", first, -1)
    assert collections.get(anna, "vs_1").sealed_bytes == len(b"namereadnewer")
    before = searched()
    begin()
    stored.delete(anna, "vs_1", "file-1")
    assert (searched(), collections.get(anna, "vs_1").sealed_bytes) == ([], len(b"name"))


def test_what_is_known_of_a_document_changes(world: World, anna: str) -> None:
    stored, number = world.accounts.stored_documents, _filled(world, anna)
    before = world.accounts.stored_collections.get(anna, "vs_1")
    changed = stored.change(anna, "vs_1", number, b"read, and more")
    assert (changed.number, changed.state, changed.sealed) == (number, "completed", b"read, and more")
    after = world.accounts.stored_collections.get(anna, "vs_1")
    assert (after.changes > before.changes, after.sealed_bytes) == (True, before.sealed_bytes + len(b", and more"))
    [number] = _added(world, anna, "file-2")
    with _refused("conflict"):
        stored.change(anna, "vs_1", number, b"")


def test_a_batch_is_counted_cancelled_and_read_again(world: World, anna: str) -> None:
    stored, collections = world.accounts.stored_documents, world.accounts.stored_collections
    collections.new(anna, "vs_1", KEY, b"")
    [lone] = _added(world, anna, "file-0")
    third, second, first = _added(world, anna, "file-3", "file-2", "file-1", batch="vsfb_1")
    stored.end(anna, "vs_1", first, "completed", b"document")
    stored.add_passages(anna, "vs_1", second, [PassagesPart(0, b"passages")])
    assert stored.batch(anna, "vs_1", "vsfb_1").counts == DocumentCounts(in_progress=2, completed=1)
    listed = stored.listed(anna, "vs_1", None, 10, newest_first=False, batch_id="vsfb_1")
    assert [one.file_id for one in listed] == ["file-3", "file-2", "file-1"]
    assert not stored.batch(anna, "vs_1", "vsfb_1").is_abandoned
    world.clock.now_s += READ_LEASE_S
    assert stored.batch(anna, "vs_1", "vsfb_1").is_abandoned
    abandoned = stored.listed(anna, "vs_1", None, 10, newest_first=True, only="abandoned")
    assert [one.file_id for one in abandoned] == ["file-2", "file-3", "file-0"]
    [again] = _added(world, anna, "file-3")  # of no batch by itself: it stays where it was
    in_order = [one.file_id for one in stored.listed(anna, "vs_1", "file-0", 10, newest_first=False)]
    assert in_order == ["file-3", "file-2", "file-1"]
    cancelled = stored.cancel(anna, "vs_1", "vsfb_1")
    assert (cancelled.counts, cancelled.is_abandoned) == (DocumentCounts(completed=1, cancelled=2), False)
    assert stored.keep(anna, "vs_1", [lone, second, third, again]) == [lone]
    with _refused("conflict"):
        stored.end(anna, "vs_1", second, "completed", b"")
    found = collections.get(anna, "vs_1")
    assert found.counts == DocumentCounts(in_progress=1, completed=1, cancelled=2)
    assert found.sealed_bytes == 4 * len(b"document")
    for file_id in ("file-1", "file-2", "file-3"):
        stored.delete(anna, "vs_1", file_id)
    with _refused("not_found"):
        stored.batch(anna, "vs_1", "vsfb_1")


def test_the_documents_of_all_collections_are_counted_in_one_query(world: World, anna: str) -> None:
    stored = world.accounts.stored_collections
    for index in range(4):
        stored.new(anna, f"vs_{index}", KEY, b"")
    _added(world, anna, "file-1", "file-2")
    asked = list[str]()
    with world.accounts.store.transaction() as connection:
        engine = connection.engine
    watch = lambda *given: asked.append(given[2])  # noqa: E731
    event.listen(engine, "before_cursor_execute", watch)
    found = stored.listed(anna, None, 10, newest_first=False)
    event.remove(engine, "before_cursor_execute", watch)
    assert [one.counts.in_progress for one in found] == [0, 2, 0, 0]
    assert len([each for each in asked if "FROM documents" in each]) == 1


def test_deleting_destroys_the_keys_and_then_the_passages(world: World, anna: str, bert: str) -> None:
    stored = world.accounts.stored_collections
    _filled(world, anna, parts=40)
    stored.share(anna, "vs_1", ["bert"])
    stored.delete(anna, "vs_1")
    with world.accounts.store.transaction() as connection:
        assert connection.execute(select(tables.collection_members)).all() == []
    for secret in (anna, bert):
        assert stored.listed(secret, None, 10, newest_first=True) == []
    while stored.destroy_some():
        pass
    with world.accounts.store.transaction() as connection:
        for table in (tables.passages, tables.documents, tables.collections):
            assert connection.execute(select(table)).all() == []


def test_a_deleted_document_is_gone_and_its_room_free(world: World, anna: str) -> None:
    stored = world.accounts.stored_collections
    number = _filled(world, anna)
    before = stored.get(anna, "vs_1").changes
    world.accounts.stored_documents.delete(anna, "vs_1", "file-1")
    with _refused("not_found"):
        world.accounts.stored_documents.passages(anna, "vs_1", number, -1)
    found = stored.get(anna, "vs_1")
    assert (found.counts.completed, found.sealed_bytes) == (0, len(b"name"))
    assert found.changes > before
    assert _added(world, anna, "file-1") > [number]


def test_all_of_a_users_goes_with_the_rest(world: World, anna: str) -> None:
    _filled(world, anna)
    world.accounts.stored_conversations.delete(anna, None)
    assert world.accounts.stored_collections.listed(anna, None, 10, newest_first=True) == []


def test_pages_of_the_list(world: World, anna: str) -> None:
    stored = world.accounts.stored_collections
    for index in range(5):
        stored.new(anna, f"vs_{index}", KEY, b"")
        world.clock.now_s += 1
    found = [one.id for one in stored.listed(anna, "vs_3", 2, newest_first=True)]
    assert found == ["vs_2", "vs_1"]
    assert [one.id for one in stored.listed(anna, "vs_3", 2, newest_first=False)] == ["vs_4"]


def test_passages_count_in_the_quota(tmp_path: Path) -> None:
    world = World(prepare(str(tmp_path / "accounts.db")), batches=BatchSettings(bytes_per_user=1 << 20))
    world.add("anna", role="admin")
    anna = world.log_in("anna")
    world.accounts.stored_collections.new(anna, "vs_1", KEY, b"")
    [number] = _added(world, anna, "file-1")
    stored = world.accounts.stored_documents
    stored.add_passages(anna, "vs_1", number, [PassagesPart(0, bytes(1 << 19))])
    with _refused("insufficient_quota"):
        stored.add_passages(anna, "vs_1", number, [PassagesPart(1, bytes(1 << 19))])
    failed = stored.end(anna, "vs_1", number, "failed", b"no room")  # what was stored of it takes no room
    assert (failed.state, failed.parts, failed.sealed_bytes, failed.sealed) == ("failed", 0, 7, b"no room")
    assert world.accounts.stored_collections.get(anna, "vs_1").sealed_bytes == 7
    [number] = _added(world, anna, "file-2")
    stored.add_passages(anna, "vs_1", number, [PassagesPart(0, bytes(1 << 19))])
    while world.accounts.stored_collections.destroy_some():
        pass
    with world.accounts.store.transaction() as connection:
        assert connection.execute(select(tables.passages.c.number)).scalars().all() == [number]
    world.accounts.close()
