import pytest

from app.accounts import conversations as conversations_module
from app.accounts import tables
from app.messages.accounts import AccountsError, Forgotten
from tests.app.accounts.world import World

NAMES = [None, "", "default", "name", "a chat", "../" * 3, "0" * 32]


def test_a_conversations_key_is_the_same_for_every_credential_of_its_user_alone(world: World) -> None:
    world.add("ann")
    world.add("bob", role="admin")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    conversations = world.accounts.conversations
    mine, his = ([conversations.key(session, name) for name in NAMES] for session in (ann, bob))
    assert len({each.key for each in (*mine, *his)}) == len({each.key_id for each in (*mine, *his)}) == 2 * len(NAMES)
    assert (len(mine[0].key), len(mine[0].key_id)) == (32, 16)
    key = world.accounts.api_keys.add(ann, "", None).secret
    world.reopen()
    conversations = world.accounts.conversations
    assert [conversations.key(secret, name) for secret in (ann, key) for name in NAMES] == [*mine, *mine]


def test_forgetting_destroys_the_key(world: World) -> None:
    world.add("ann")
    world.add("bob")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    conversations = world.accounts.conversations
    first, second = conversations.key(ann, "first"), conversations.key(ann, "second")
    for secret, wanted in [(bob, "first"), (ann, "third"), (ann, first.conversation_id)]:
        with pytest.raises(AccountsError, match="no such conversation") as refused:
            conversations.forget(secret, wanted)
        assert refused.value.refusal.code == "not_found"
    assert conversations.forget(ann, "first") == Forgotten(1, first.key_id)
    again = conversations.key(ann, "first")
    assert (again.key != first.key, again.key_id != first.key_id) == (True, True)
    assert conversations.key(ann, "second") == second


def test_forgetting_all_destroys_the_shared_key_too_and_nobody_elses(world: World) -> None:
    world.add("ann")
    world.add("bob")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    conversations, logins = world.accounts.conversations, world.accounts.logins
    mine, his = conversations.key(ann, None), conversations.key(bob, None)
    before, bobs = logins.identify(ann).pages, logins.identify(bob).pages
    assert conversations.forget(ann, None) == Forgotten(1, None)
    after = logins.identify(ann).pages
    assert (after.shared_key, after.shared_key_id) != (before.shared_key, before.shared_key_id)
    assert conversations.forget(ann, None) == Forgotten(0, None)
    assert conversations.key(ann, None).key != mine.key
    assert conversations.key(bob, None) == his
    assert logins.identify(bob).pages == bobs


def test_of_too_many_conversations_the_one_unused_for_longest_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations_module, "MOST_CONVERSATIONS", 3)
    world.add("ann")
    ann = world.log_in("ann")
    conversations, keys = world.accounts.conversations, {}
    for name in ("a", "b", "c"):
        world.clock.now_s += 3600
        keys[name] = conversations.key(ann, name)
    world.clock.now_s += 3600
    assert conversations.key(ann, "a") == keys["a"]
    conversations.key(ann, "d")
    with world.accounts.store.transaction() as connection:
        assert len(connection.execute(tables.conversations.select()).all()) == 3
    assert {name: conversations.key(ann, name) for name in ("a", "c")} == {name: keys[name] for name in ("a", "c")}
    assert conversations.key(ann, "b") != keys["b"]
