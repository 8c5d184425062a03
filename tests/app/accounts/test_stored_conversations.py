from pathlib import Path

import pytest

from app.accounts import conversations as conversations_module
from app.accounts import stored_conversations as stored_module
from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.passwords import new_password
from app.messages.accounts import AccountsError, Forgotten
from app.messages.stored import NewItem, StoredConversation, StoredResponse
from tests.app.accounts.world import CHEAP, FIRST, World, choose


def id_of(number: int) -> str:
    return f"conv_{number:032x}"


def items_of(*ids: str) -> list[NewItem]:
    return [NewItem(item_id, f"sealed {item_id}".encode()) for item_id in ids]


@pytest.fixture
def ann(world: World) -> str:
    """A session of ann."""
    world.add("ann")
    return world.log_in("ann")


def refused(world: World, code: str, method: str, *arguments: object, **named: object) -> None:
    with pytest.raises(AccountsError) as error:
        getattr(world.accounts.stored_conversations, method)(*arguments, **named)
    assert error.value.refusal.code == code


def seen(world: World, ann: str, conversation_id: str, after: str | None = None, limit: int = 99) -> list[str]:
    items = world.accounts.stored_conversations.items(ann, conversation_id, after, limit, newest_first=False)
    assert all(item.sealed == f"sealed {item.id}".encode() for item in items)
    return [item.id for item in items]


def count(world: World, table: str) -> int:
    with world.accounts.store.transaction() as connection:
        return len(connection.execute(tables.metadata.tables[table].select()).all())


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_a_life_of_a_conversation(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    made = stored.new(ann, id_of(1), b"title", items_of("a", "b"))
    assert made == StoredConversation(id_of(1), 1_800_000_000, 1_800_000_000, 2, made.seq, b"title")
    world.clock.now_s += 5
    changed = stored.change(ann, id_of(1), b"another title")
    assert (changed.sealed, changed.created, changed.updated) == (b"another title", made.created, made.created + 5)
    added = stored.add_items(ann, id_of(1), items_of("c", "d"))
    assert (added.items, added.seq > made.seq) == (4, True)
    less = stored.delete_item(ann, id_of(1), "b")
    assert (less.items, less.seq > added.seq) == (3, True)
    world.reopen()
    stored = world.accounts.stored_conversations
    assert stored.get(ann, id_of(1)) == less
    assert seen(world, ann, id_of(1)) == ["a", "c", "d"]
    assert seen(world, ann, id_of(1), limit=2) == ["a", "c"]
    assert seen(world, ann, id_of(1), after="a", limit=1) == ["c"]
    newest = stored.items(ann, id_of(1), "d", 9, newest_first=True)
    assert [item.id for item in newest] == ["c", "a"]
    assert stored.item(ann, id_of(1), "c").sealed == b"sealed c"
    assert seen(world, ann, id_of(1), limit=-1) == []
    refused(world, "not_found", "items", ann, id_of(1), "b", 9, newest_first=True)
    refused(world, "not_found", "item", ann, id_of(1), "b")
    refused(world, "not_found", "delete_item", ann, id_of(1), "b")


def test_those_updated_last_come_first(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    for number in (1, 2, 3):
        stored.new(ann, id_of(number), b"", [])
        world.clock.now_s += 0.001
    world.accounts.conversations.key(ann, "not a stored one")
    stored.add_items(ann, id_of(1), items_of("a"))
    assert [each.id for each in stored.newest(ann, None, 9)] == [id_of(1), id_of(3), id_of(2)]
    assert [each.id for each in stored.newest(ann, None, 2)] == [id_of(1), id_of(3)]
    assert [each.id for each in stored.newest(ann, id_of(3), 2)] == [id_of(2)]
    assert stored.newest(ann, id_of(2), 2) == []
    refused(world, "not_found", "newest", ann, id_of(9), 2)


def test_ids_are_taken_once(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    stored.new(ann, id_of(1), b"", items_of("a"))
    world.add("bob")
    bob = world.log_in("bob")
    world.accounts.conversations.key(ann, id_of(2))  # a name given before
    for user, number in [(ann, 1), (bob, 1), (ann, 2)]:
        refused(world, "conflict", "new", user, id_of(number), b"", [])
    for items in (items_of("a"), items_of("b", "b"), items_of("b", "a")):
        refused(world, "conflict", "add_items", ann, id_of(1), items)
    for wrong in ("conv_", "conv_" + "G" * 32, id_of(3) + "\n", "0" * 32, "../" * 12, "conv_\0" + "0" * 31):
        refused(world, "invalid_value", "new", ann, wrong, b"", [])
        refused(world, "not_found", "get", ann, wrong)
    for wrong in ("", "x" * 65, "a b", "é", "\0"):
        refused(world, "invalid_value", "add_items", ann, id_of(1), [NewItem(wrong, b"")])
        refused(world, "not_found", "item", ann, id_of(1), wrong)
    assert stored.get(ann, id_of(1)).items == 1
    assert count(world, "items") == 1


# --- what is deleted --------------------------------------------------------------------------------------------------


def deleted(world: World, ann: str) -> None:
    """A conversation with a response, deleted just now."""
    stored = world.accounts.stored_conversations
    stored.new(ann, id_of(1), b"title", items_of("a"))
    response = StoredResponse("r1", 0, id_of(1), None, b"in", b"out")
    turn = stored.begin_turn(ann, "here", id_of(1), "r1").seq
    world.accounts.stored_responses.add(ann, response, items_of("b"), turn)
    world.accounts.stored_responses.add(ann, StoredResponse("r2", 0, None, "r1", b"in", b"out"), [], None)
    assert stored.delete(ann, id_of(1), undo=True).conversations == 1


def test_a_deleted_conversation_is_nowhere_and_comes_back(world: World, ann: str) -> None:
    stored, responses = world.accounts.stored_conversations, world.accounts.stored_responses
    deleted(world, ann)
    key = world.accounts.conversations.key(ann, id_of(1))
    assert stored.newest(ann, None, 9) == []
    refused(world, "not_found", "get", ann, id_of(1))
    refused(world, "not_found", "change", ann, id_of(1), b"")
    refused(world, "not_found", "items", ann, id_of(1), None, 9, newest_first=False)
    refused(world, "not_found", "item", ann, id_of(1), "a")
    refused(world, "not_found", "add_items", ann, id_of(1), items_of("c"))
    refused(world, "not_found", "begin_turn", ann, "here", id_of(1), "r3")
    refused(world, "not_found", "delete", ann, id_of(1))
    for call in (responses.get, responses.history):
        with pytest.raises(AccountsError, match="no such response"):
            call(ann, "r1")
    assert [each.id for each in responses.history(ann, "r2")] == ["r2"]
    world.add("bob")
    refused(world, "not_found", "restore", world.log_in("bob"), id_of(1))

    assert stored.restore(ann, id_of(1)).items == 2
    refused(world, "not_found", "restore", ann, id_of(1))
    assert (seen(world, ann, id_of(1)), responses.get(ann, "r1").id) == (["a", "b"], "r1")
    assert world.accounts.conversations.key(ann, id_of(1)) == key


def test_the_key_of_a_deleted_conversations_pages_is_destroyed_at_once(world: World, ann: str) -> None:
    world.accounts.stored_conversations.new(ann, id_of(1), b"title", [])
    before = world.accounts.conversations.key(ann, id_of(1))
    forgotten = world.accounts.stored_conversations.delete(ann, id_of(1), undo=True)
    assert forgotten.key_id == before.key_id
    world.accounts.stored_conversations.restore(ann, id_of(1))
    assert world.accounts.conversations.key(ann, id_of(1)).key != before.key


@pytest.mark.parametrize("end", ["time", "logout", "stop", "kill", "clock", "all"])
def test_a_deletion_ends_without_the_browser(world: World, ann: str, end: str) -> None:
    deleted(world, ann)
    other = world.log_in("ann")
    world.accounts.stored_conversations.destroy_deleted()
    assert count(world, "conversations") == 1  # not yet
    match end:
        case "time":
            world.clock.now_s += stored_module.UNDO_S
            world.accounts.stored_conversations.destroy_deleted()
        case "clock":
            world.clock.now_s -= 86_400
            world.accounts.stored_conversations.destroy_deleted()
        case "logout":
            world.accounts.logins.log_out(ann, everywhere=False)
        case "stop":
            world.reopen()
        case "kill":
            world.accounts.store.database.close()
            world.clock.now_s += stored_module.UNDO_S
            world.opened()
        case "all":
            world.accounts.stored_conversations.delete(ann, None)
    assert (count(world, "conversations"), count(world, "items")) == (0, 0)
    with world.accounts.store.transaction() as connection:
        left = connection.execute(tables.responses.select()).all()
    assert [each.id for each in left] == ([] if end == "all" else ["r2"])
    refused(world, "not_found", "restore", other, id_of(1))


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_of_too_many_conversations_no_stored_one_goes(world: World, ann: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations_module, "MOST_CONVERSATIONS", 2)
    stored, conversations = world.accounts.stored_conversations, world.accounts.conversations
    for number in range(3):
        stored.new(ann, id_of(number), b"", [])
    keys = [conversations.key(ann, id_of(number)) for number in range(3)]
    for name in ("a", "b", "c", "d"):
        world.clock.now_s += 3600
        conversations.key(ann, name)
    assert [conversations.key(ann, id_of(number)) for number in range(3)] == keys
    assert count(world, "conversations") == 3 + 2
    monkeypatch.setattr(stored_module, "MOST_STORED", 3)
    refused(world, "insufficient_quota", "new", ann, id_of(9), b"", [])
    stored.delete(ann, id_of(0))
    assert stored.new(ann, id_of(9), b"", []).items == 0


def test_items_of_a_conversation_are_bounded(world: World, ann: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_module, "MOST_ITEMS", 3)
    stored = world.accounts.stored_conversations
    refused(world, "insufficient_quota", "new", ann, id_of(1), b"", items_of(*"abcd"))
    assert count(world, "conversations") == 0
    stored.new(ann, id_of(1), b"", items_of("a", "b"))
    refused(world, "insufficient_quota", "add_items", ann, id_of(1), items_of("c", "d"))
    assert stored.add_items(ann, id_of(1), items_of("c")).items == 3
    stored.delete_item(ann, id_of(1), "a")
    assert stored.add_items(ann, id_of(1), items_of("d")).items == 3


def test_bytes_of_a_user_are_bounded_and_reading_and_deleting_always_work(tmp_path: Path) -> None:
    world = World(str(tmp_path / "db"), stored_bytes_per_user=100)
    world.add("ann")
    world.add("bob")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    stored, responses = world.accounts.stored_conversations, world.accounts.stored_responses
    stored.new(ann, id_of(1), b"x" * 20, [NewItem("a", b"x" * 40)])
    responses.add(ann, StoredResponse("r", 0, None, None, b"x" * 15, b"x" * 15), [], None)  # 90 of 100
    with pytest.raises(AccountsError, match=r"take 90 of 100 bytes.*delete some, or send 'store': false"):
        stored.add_items(ann, id_of(1), [NewItem("b", b"x" * 11)])
    refused(world, "insufficient_quota", "new", ann, id_of(2), b"x" * 6, [NewItem("b", b"x" * 5)])
    refused(world, "insufficient_quota", "change", ann, id_of(1), b"x" * 31)
    turn = stored.begin_turn(ann, "ingress", id_of(1), "resp_1").seq
    answer = StoredResponse("r2", 0, id_of(1), None, b"x" * 3, b"x" * 3)
    with pytest.raises(AccountsError, match="take 95 of 100 bytes"):
        responses.add(ann, answer, [NewItem("b", b"x" * 5)], turn)
    assert (count(world, "items"), count(world, "responses")) == (1, 1)
    assert stored.add_items(ann, id_of(1), [NewItem("b", b"x" * 10)]).items == 2  # the turn is over, and there is room
    assert stored.change(ann, id_of(1), b"x" * 20).sealed == b"x" * 20
    assert stored.new(bob, id_of(3), b"x" * 100, []).items == 0  # limits are per user
    with world.accounts.store.transaction() as connection:
        connection.execute(tables.conversations.update().values(bytes=1000))  # the operator has lowered the limit
    assert stored.get(ann, id_of(1)).items == stored.delete_item(ann, id_of(1), "a").items + 1
    assert stored.change(ann, id_of(1), b"less").sealed == b"less"
    responses.delete(ann, "r")
    assert stored.delete(ann, id_of(1)).conversations == 1
    world.accounts.close()


def test_a_turn_without_room_for_its_answer_does_not_begin(tmp_path: Path) -> None:
    world = World(str(tmp_path / "db"), stored_bytes_per_user=6400)
    world.add("ann")
    ann = world.log_in("ann")
    stored = world.accounts.stored_conversations
    stored.new(ann, id_of(1), b"", [NewItem("a", b"x" * 6300)])
    turn = stored.begin_turn(ann, "ingress", id_of(1), "resp_1").seq  # a 64th is left
    stored.end_turn(ann, id_of(1), turn)
    stored.change(ann, id_of(1), b"x")
    refused(world, "insufficient_quota", "begin_turn", ann, "ingress", id_of(1), "resp_2")
    stored.delete_item(ann, id_of(1), "a")
    assert stored.begin_turn(ann, "ingress", id_of(1), "resp_2").items == 0
    world.accounts.close()


def test_bytes_are_free_again(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations

    def used() -> int:
        with world.accounts.store.transaction() as connection:
            return sum(row.bytes for row in connection.execute(tables.conversations.select()))

    stored.new(ann, id_of(1), b"12345", items_of("a", "b"))
    assert used() == 5 + 2 * len(b"sealed a")
    stored.delete_item(ann, id_of(1), "a")
    stored.change(ann, id_of(1), b"123")
    assert used() == 3 + len(b"sealed a")


# --- what destroys ----------------------------------------------------------------------------------------------------


def test_forgetting_a_stored_conversations_pages_replaces_its_key_and_keeps_its_texts(world: World, ann: str) -> None:
    stored, conversations = world.accounts.stored_conversations, world.accounts.conversations
    for number in (1, 2):
        stored.new(ann, id_of(number), b"title", items_of("a"))
    first, second = (conversations.key(ann, id_of(number)) for number in (1, 2))
    before = sealed_keys(world)
    assert conversations.forget(ann, id_of(1)) == Forgotten(1, first.key_id)
    again = conversations.key(ann, id_of(1))
    assert again.conversation_id == first.conversation_id
    assert (again.key == first.key, again.key_id == first.key_id) == (False, False)
    assert conversations.key(ann, id_of(2)) == second
    assert seen(world, ann, id_of(1)) == ["a"]
    conversations.key(ann, "not a stored one")
    assert conversations.forget(ann, None) == Forgotten(3, None)
    assert conversations.key(ann, id_of(2)).key != second.key
    assert conversations.key(ann, id_of(1)).key != again.key
    assert seen(world, ann, id_of(2)) == ["a"]
    assert count(world, "conversations") == 2
    written = b"".join(path.read_bytes() for path in Path(world.settings.database).parent.iterdir())
    assert [key for key in before if key in written] == []


def sealed_keys(world: World) -> list[bytes]:
    with world.accounts.store.transaction() as connection:
        return [row.wrapped_ck for row in connection.execute(tables.conversations.select())]


def test_deleting_a_conversation_deletes_all_of_it_and_leaves_nothing_in_the_file(world: World, ann: str) -> None:
    stored, conversations, responses = (
        world.accounts.stored_conversations,
        world.accounts.conversations,
        world.accounts.stored_responses,
    )
    canaries = [name * 40 for name in (b"title", b"first", b"second", b"input", b"answer")]
    stored.new(ann, id_of(1), canaries[0], [NewItem("a", canaries[1])])
    stored.new(ann, id_of(2), b"kept", items_of("a"))
    turn = stored.begin_turn(ann, "ingress", id_of(1), "resp_1").seq
    response = StoredResponse("r", 0, id_of(1), None, canaries[3], canaries[4])
    responses.add(ann, response, [NewItem("b", canaries[2])], turn)
    keys = [conversations.key(ann, id_of(number)) for number in (1, 2)]
    canaries.append(sealed_keys(world)[0])
    file, position = Path(world.settings.database), world.accounts.store.changes.position
    assert all(canary in file.read_bytes() for canary in canaries)
    assert stored.delete(ann, id_of(1)) == Forgotten(1, keys[0].key_id)
    written = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert [canary for canary in canaries if canary in written] == []
    assert world.accounts.store.changes.position == position + 1
    assert (count(world, "items"), count(world, "responses")) == (1, 0)
    assert conversations.key(ann, id_of(2)) == keys[1]
    for method in ("get", "delete"):
        refused(world, "not_found", method, ann, id_of(1))
    rows = world.accounts.audit(OPERATOR_ACTS, 0, 99).rows
    assert [(row.action, row.object) for row in rows][-1] == ("delete_conversation", "0" * 31 + "1")


def test_deleting_all_is_the_users_own(world: World, ann: str) -> None:
    world.add("bob")
    bob = world.log_in("bob")
    stored, conversations, logins = (
        world.accounts.stored_conversations,
        world.accounts.conversations,
        world.accounts.logins,
    )
    for user, number in [(ann, 1), (ann, 2), (bob, 3)]:
        stored.new(user, id_of(number), b"", items_of("a"))
        world.accounts.stored_responses.add(user, StoredResponse(f"r{number}", 0, None, None, b"", b""), [], None)
    conversations.key(ann, None)
    anns, bobs = logins.identify(ann).pages, logins.identify(bob).pages
    assert stored.delete(ann, None) == Forgotten(3, None)
    assert logins.identify(ann).pages.shared_key != anns.shared_key
    assert logins.identify(bob).pages == bobs
    assert stored.newest(ann, None, 9) == []
    assert [each.id for each in stored.newest(bob, None, 9)] == [id_of(3)]
    assert [count(world, table) for table in ("conversations", "items", "responses")] == [1, 1, 1]
    assert world.accounts.audit(OPERATOR_ACTS, 0, 99).intact


@pytest.mark.parametrize("how", ["deleted", "reset without the recovery code"])
def test_nothing_stays_of_a_user_who_is(world: World, ann: str, how: str) -> None:
    world.add("bob")
    bob = world.log_in("bob")
    for user, number in [(ann, 1), (bob, 2)]:
        turn = world.accounts.stored_conversations.new(user, id_of(number), b"", items_of("a")).seq
        for conversation_id, its_turn in [(id_of(number), turn), (None, None)]:
            response = StoredResponse(f"r{number}{turn if conversation_id else ''}", 0, conversation_id, None, b"", b"")
            world.accounts.stored_responses.add(user, response, [], its_turn)
    if how == "deleted":
        world.accounts.users.delete(OPERATOR_ACTS, "ann")
    else:
        world.accounts.users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
        choose(world.accounts, "ann")
    assert [count(world, table) for table in ("conversations", "items", "responses")] == [1, 1, 2]
    assert seen(world, bob, id_of(2)) == ["a"]
