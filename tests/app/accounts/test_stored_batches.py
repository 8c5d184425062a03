"""Files and batches in the accounts: who finds them, who has a batch, and that no line has two results."""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS, Accounts
from app.accounts.batch_secrets import BatchSecrets
from app.accounts.store import open_store
from app.messages.accounts import AccountsError
from app.messages.batches import LAST_SEQ, LEASE_S, PART_BYTES, FilePart, LineResult, NewBatch
from app.settings.accounts import BatchSettings
from tests.app.accounts.world import CHEAP, KEK, World


class Owner:
    """A user with an uploaded file."""

    def __init__(self, world: World, name: str = "ann") -> None:
        self.world = world
        world.add(name)
        self.name = name
        self.key = world.accounts.api_keys.add(world.log_in(name), "", None).secret

    @property
    def files(self) -> Any:
        return self.world.accounts.stored_files

    @property
    def batches(self) -> Any:
        return self.world.accounts.stored_batches

    def upload(self, name: str = "file-1", parts: Sequence[bytes] = (b"one", b"two")) -> str:
        self.files.new(self.key, name)
        for seq, sealed in enumerate(parts):
            self.files.add_part(self.key, name, FilePart(seq, sealed))
        self.files.finish(self.key, name, b"name", None)
        return name

    def begin(self, name: str = "batch_1", **more: Any) -> Any:
        values = {"input_id": "file-1", "output_id": f"{name}-out", "error_id": f"{name}-err"} | more
        return self.batches.new(self.key, NewBatch(name, sealed=b"asked", **values))

    def content(self, file_id: str) -> list[bytes]:
        return [part.sealed for part in self.files.parts(self.key, file_id, -1)]


@pytest.fixture
def ann(world: World) -> Owner:
    ann = Owner(world)
    ann.upload()
    return ann


def refusal(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(AccountsError) as error:
        call(*arguments, **named)
    return error.value.refusal.code


def limit(world: World, **values: Any) -> None:
    store = world.accounts.store
    store.settings = store.settings.model_copy(update={"batches": BatchSettings(**values)})


def test_a_file_is_found_by_its_user_once_it_is_complete(world: World, ann: Owner) -> None:
    ann.files.new(ann.key, "file-2")
    assert refusal(ann.files.get, ann.key, "file-2") == "not_found"
    assert refusal(ann.files.parts, ann.key, "file-2", -1) == "not_found"
    ann.files.add_part(ann.key, "file-2", FilePart(0, b"x"))
    ann.files.add_part(ann.key, "file-2", FilePart(0, b"x"))  # its answer was lost
    file = ann.files.finish(ann.key, "file-2", b"name", 3600)
    assert ann.files.finish(ann.key, "file-2", b"another", 1) == file
    assert (file.parts, file.sealed_bytes, file.expires - file.created) == (1, 1, 3600)
    assert refusal(ann.files.add_part, ann.key, "file-2", FilePart(1, b"x")) == "not_found"
    assert [one.id for one in ann.files.listed(ann.key, None, None, 5, newest_first=True)] == ["file-2", "file-1"]
    bob = Owner(world, "bob")
    for call in (
        lambda: bob.files.get(bob.key, "file-1"),
        lambda: bob.files.parts(bob.key, "file-1", -1),
        lambda: bob.files.add_part(bob.key, "file-1", FilePart(9, b"x")),
        lambda: bob.files.finish(bob.key, "file-1", b"", None),
        lambda: bob.files.delete(bob.key, "file-1"),
        lambda: bob.files.listed(bob.key, None, "file-1", 5, newest_first=True),
    ):
        assert refusal(call) == "not_found"
    assert refusal(bob.files.new, bob.key, "file-1") == "conflict"
    assert bob.files.listed(bob.key, None, None, 5, newest_first=True) == []


def test_lists_go_on_after_one_in_either_order(world: World, ann: Owner) -> None:
    for number in range(2, 6):
        world.clock.now_s += number % 2  # some of the same time
        ann.upload(f"file-{number}")
    for newest_first in (True, False):
        every = [one.id for one in ann.files.listed(ann.key, "batch", None, 9, newest_first=newest_first)]
        assert sorted(every) == [f"file-{number}" for number in range(1, 6)]
        for place, file_id in enumerate(every):
            rest = ann.files.listed(ann.key, "batch", file_id, 9, newest_first=newest_first)
            assert [one.id for one in rest] == every[place + 1 :]
    assert ann.files.listed(ann.key, "batch_output", None, 9, newest_first=True) == []
    for number in range(3):
        ann.begin(f"batch_{number}")
    every = [one.id for one in ann.batches.listed(ann.key, None, 9)]
    assert [one.id for one in ann.batches.listed(ann.key, every[0], 1)] == every[1:2]


def test_parts_come_in_answers_of_bounded_size(ann: Owner) -> None:
    parts = [b"a" * (PART_BYTES - 10), b"b" * 11, b"c" * (2 * PART_BYTES), b"d", b"e"]
    ann.upload("file-2", parts)
    answers, after = [], -1
    while some := ann.files.parts(ann.key, "file-2", after):
        answers.append([part.sealed for part in some])
        after = some[-1].seq
    assert answers == [parts[:1], parts[1:2], parts[2:3], parts[3:]]


def test_a_user_s_files_have_a_limit(world: World, ann: Owner) -> None:
    limit(world, bytes_per_user=10)
    ann.files.new(ann.key, "file-2")
    ann.files.add_part(ann.key, "file-2", FilePart(0, b"1234"))
    assert refusal(ann.files.add_part, ann.key, "file-2", FilePart(1, b"1")) == "insufficient_quota"
    assert refusal(ann.files.new, ann.key, "file-3") == "insufficient_quota"
    ann.files.delete(ann.key, "file-2")
    ann.files.new(ann.key, "file-3")


def test_deleted_parts_go_in_steps(world: World, ann: Owner) -> None:
    ann.upload("file-2", [b"x"] * 40)
    ann.files.delete(ann.key, "file-2")
    assert refusal(ann.files.get, ann.key, "file-2") == "not_found"
    left = []
    while ann.files.destroy_some():
        with world.accounts.store.transaction() as connection:
            left.append(len(connection.execute(tables.file_parts.select()).all()))
    assert left == [26, 10, 2]


def test_what_is_too_old_goes_but_not_what_a_batch_needs(world: World, ann: Owner) -> None:
    ann.upload("file-2")
    ann.files.new(ann.key, "file-3")
    ann.begin()
    limit(world, days=1, hours=100)
    world.clock.now_s += 31 * 86_400
    ann.files.delete_old()
    assert ann.files.get(ann.key, "file-1").id == "file-1"
    assert refusal(ann.files.get, ann.key, "file-2") == "not_found"
    assert refusal(ann.files.add_part, ann.key, "file-3", FilePart(0, b"")) == "not_found"
    (claimed,) = ann.batches.claim(5)
    ann.batches.add_results(ann.key, "batch_1", claimed.claim, [LineResult(1, False, b"r")])
    ann.batches.delete_old()  # nobody has seen its user for longer than files are kept
    assert refusal(ann.batches.get, ann.key, "batch_1") == "not_found"
    assert ann.batches.secrets.users() == []
    while ann.files.destroy_some():
        pass
    ann.files.delete_old()
    while ann.files.destroy_some():
        pass
    with world.accounts.store.transaction() as connection:
        assert connection.execute(tables.file_parts.select()).all() == []
        assert connection.execute(tables.files.select()).all() == []


def test_one_ingress_has_a_batch_until_its_lease_ends(world: World, ann: Owner) -> None:
    ann.begin()
    assert refusal(ann.files.delete, ann.key, "file-1") == "conflict"
    (first,) = ann.batches.claim(5)
    assert (first.batch.id, first.secret) == ("batch_1", ann.key)
    assert ann.batches.claim(5) == []
    ann.batches.start(ann.key, "batch_1", first.claim, 3, b"started")
    world.clock.now_s += LEASE_S - 1
    ann.batches.keep(ann.key, "batch_1", first.claim)
    world.clock.now_s += LEASE_S - 1
    assert ann.batches.claim(5) == []
    world.clock.now_s += 1
    (second,) = ann.batches.claim(5)
    for late in (
        lambda: ann.batches.keep(ann.key, "batch_1", first.claim),
        lambda: ann.batches.leave(ann.key, "batch_1", first.claim),
        lambda: ann.batches.add_results(ann.key, "batch_1", first.claim, [LineResult(1, False, b"r")]),
        lambda: ann.batches.end(ann.key, "batch_1", first.claim, "completed", b"", (b"", b"")),
    ):
        assert refusal(late) == "conflict"
    ann.batches.leave(ann.key, "batch_1", second.claim)
    (third,) = ann.batches.claim(5)
    world.clock.now_s -= 1000  # the clock is set back: the lease does not last until then
    (fourth,) = ann.batches.claim(5)
    assert third.claim < fourth.claim


def test_a_line_has_one_result_and_a_file_once_the_batch_has_ended(world: World, ann: Owner) -> None:
    ann.begin()
    (held,) = ann.batches.claim(5)
    ann.batches.start(ann.key, "batch_1", held.claim, 4, b"started")
    results = [LineResult(2, False, b"two"), LineResult(1, True, b"one")]
    ann.batches.add_results(ann.key, "batch_1", held.claim, results)
    again = [LineResult(1, False, b"another one"), LineResult(2, True, b"another two"), LineResult(3, False, b"three")]
    batch = ann.batches.add_results(ann.key, "batch_1", held.claim, again)
    assert (batch.total, batch.completed, batch.failed) == (4, 2, 1)
    assert list(ann.batches.done_lines(ann.key, "batch_1", 0)) == [1, 2, 3]
    assert list(ann.batches.done_lines(ann.key, "batch_1", 2)) == [3]
    assert refusal(ann.files.get, ann.key, "batch_1-out") == "not_found"
    assert refusal(ann.files.delete, ann.key, "batch_1-out") == "not_found"
    assert refusal(ann.files.add_part, ann.key, "batch_1-out", FilePart(7, b"forged")) == "not_found"
    ann.batches.finalize(ann.key, "batch_1", held.claim)
    for _ in range(2):  # the first time its ingress is lost
        assert ann.batches.finalize(ann.key, "batch_1", held.claim).state == "finalizing"
        late = ann.batches.add_results(ann.key, "batch_1", held.claim, [LineResult(LAST_SEQ, True, b"rest")])
        assert (late.completed, late.failed) == (2, 1)
    ended = ann.batches.end(ann.key, "batch_1", held.claim, "expired", b"ended", (b"out", b"err"))
    assert (ended.state, ended.has_output, ended.has_errors) == ("expired", True, True)
    assert set(ended.times) == {"in_progress", "finalizing", "expired"}
    assert ann.content("batch_1-out") == [b"two", b"three"]
    assert ann.content("batch_1-err") == [b"one", b"rest"]
    assert ann.files.get(ann.key, "batch_1-err").parts == 2
    assert ann.batches.claim(5) == []
    assert refusal(ann.batches.cancel, ann.key, "batch_1") == "conflict"
    ann.files.delete(ann.key, "batch_1-out")
    assert not ann.batches.get(ann.key, "batch_1").has_output


def test_results_wait_for_room_but_the_end_does_not(world: World, ann: Owner) -> None:
    ann.begin()
    (held,) = ann.batches.claim(5)
    limit(world, bytes_per_user=7)
    add = ann.batches.add_results
    add(ann.key, "batch_1", held.claim, [LineResult(1, False, b"r")])
    assert refusal(add, ann.key, "batch_1", held.claim, [LineResult(2, False, b"r")]) == "insufficient_quota"
    add(ann.key, "batch_1", held.claim, [LineResult(LAST_SEQ, True, b"rest")])


def test_batches_have_limits(world: World, ann: Owner) -> None:
    limit(world, batches_per_user=2)
    assert ann.begin() == ann.begin()  # its answer was lost
    ann.begin("batch_2")
    assert refusal(ann.begin, "batch_3") == "insufficient_quota"
    assert refusal(ann.begin, "batch_3", input_id="file-9") == "not_found"
    for claimed in ann.batches.claim(1):
        ann.batches.end(ann.key, claimed.batch.id, claimed.claim, "failed", b"", (b"", b""))
    ann.begin("batch_3")
    bob = Owner(world, "bob")
    assert refusal(bob.begin, "batch_4") == "not_found"
    for call in (bob.batches.get, bob.batches.cancel):
        assert refusal(call, bob.key, "batch_3") == "not_found"
    bob.upload("file-bob")
    assert refusal(bob.begin, "batch_3", input_id="file-bob") == "conflict"
    assert bob.batches.listed(bob.key, None, 5) == []


def test_a_batch_waits_for_a_credential_of_its_user(world: World, ann: Owner) -> None:
    ann.begin()
    bob = Owner(world, "bob")
    world.reopen()
    assert ann.batches.claim(5) == []
    bob.batches.secrets.see("nobody", bob.key)
    ann.batches.get(ann.key, "batch_1")
    (claimed,) = ann.batches.claim(5)
    assert claimed.secret == ann.key
    ann.batches.leave(ann.key, "batch_1", claimed.claim)
    session = world.log_in("ann")
    ann.batches.get(session, "batch_1")
    world.accounts.logins.log_out(session, everywhere=False)
    (claimed,) = ann.batches.claim(5)
    assert claimed.secret == ann.key  # the session has ended
    ann.batches.end(ann.key, "batch_1", claimed.claim, "failed", b"", (b"", b""))
    ann.batches.get(ann.key, "batch_1")
    assert ann.batches.secrets.users() == []  # no credential is kept once all have ended


def test_secrets_are_those_of_users_with_open_batches() -> None:
    kept: list[Any] = []
    before, after = BatchSecrets(), BatchSecrets(lambda seen: kept.append(copy.deepcopy(seen)))
    before.expect(["ann", "bob"])
    for secret in ("a", "b", "a", "b"):
        before.see("ann", secret)
    before.see("bob", "c")
    before.see("eve", "d")
    after.expect(["ann"])
    after.take_over(before.seen)
    assert (after.users(), list(after.of("ann")), list(after.of("bob"))) == (["ann"], ["b", "a"], [])
    after.forget("ann", "b")
    after.forget("bob", "c")
    assert list(after.of("ann")) == ["a"]
    for number in range(100):
        after.see("ann", str(number))
    assert len(after.of("ann")) == 8
    after.end("ann")
    assert kept[0] == {"ann": []}
    assert kept[-1] == {}


def test_secrets_are_kept_in_the_memory_of_another_process(world: World, ann: Owner) -> None:
    memory = os.memfd_create("kept")
    path = Path(f"/proc/{os.getpid()}/fd/{memory}")
    ann.begin()
    secret = ann.key

    def started() -> Accounts:
        world.accounts.close()
        store = open_store(world.settings, KEK, make=True, now=world.clock, password_cost=CHEAP)
        world.accounts = Accounts(store, path)
        return world.accounts

    try:
        assert started().stored_batches.claim(5) == []
        ann.batches.get(secret, "batch_1")
        assert secret.encode() not in path.read_bytes()
        (claimed,) = started().stored_batches.claim(5)  # its process and its Ray have died
        assert claimed.secret == secret
        whole = path.read_bytes()
        os.ftruncate(memory, 40)  # a write that was broken off
        assert started().stored_batches.secrets.users() == []
        os.pwrite(memory, whole, 0)
        started()
        world.clock.now_s += LEASE_S
        (claimed,) = ann.batches.claim(5)
        ann.batches.end(secret, "batch_1", claimed.claim, "failed", b"", (b"", b""))
        assert started().stored_batches.secrets.users() == []
    finally:
        os.close(memory)


def test_a_deleted_user_leaves_nothing(world: World, ann: Owner) -> None:
    ann.begin()
    bob = Owner(world, "bob")
    bob.upload("file-bob")
    bob.batches.new(bob.key, NewBatch("batch_b", "file-bob", "o", "e", b"asked"))
    world.accounts.users.delete(OPERATOR_ACTS, "ann")
    assert [claimed.batch.id for claimed in ann.batches.claim(5)] == ["batch_b"]
    bob.world.accounts.stored_conversations.delete(bob.key, None)  # all that is stored of bob
    assert bob.batches.claim(5) == []
    assert bob.files.listed(bob.key, None, None, 5, newest_first=True) == []
    while bob.files.destroy_some():
        pass
    with world.accounts.store.transaction() as connection:
        for table in (tables.files, tables.file_parts, tables.batches):
            assert connection.execute(table.select()).all() == []
