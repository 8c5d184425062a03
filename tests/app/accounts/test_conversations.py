import pytest

from app.messages.accounts import AccountsError
from tests.app.accounts.world import World


def test_a_conversations_key_is_the_same_for_every_credential_of_its_user_alone(world: World) -> None:
    world.add("ann")
    world.add("bob", role="admin")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    conversations = world.accounts.conversations
    first, second = conversations.key(ann, None), conversations.key(ann, None)
    assert first.key != second.key
    assert first.key_id != second.key_id
    assert (len(first.key), len(first.key_id)) == (32, 16)
    key = world.accounts.logins.add_key(ann, "", None).secret
    assert conversations.key(key, first.conversation_id) == first
    for call in (conversations.key, conversations.forget):
        for wanted in (first.conversation_id, "0" * 32, "../" * 3, ""):
            with pytest.raises(AccountsError) as refused:
                call(bob, wanted)
            assert refused.value.refusal.code == "not_found"


def test_forgetting_destroys_the_key(world: World) -> None:
    world.add("ann")
    ann = world.log_in("ann")
    conversations = world.accounts.conversations
    first, second = conversations.key(ann, None), conversations.key(ann, None)
    assert conversations.forget(ann, first.conversation_id) == 1
    with pytest.raises(AccountsError, match="no such conversation"):
        conversations.key(ann, first.conversation_id)
    assert conversations.key(ann, second.conversation_id) == second


def test_forgetting_all_destroys_the_shared_key_too_and_nobody_elses(world: World) -> None:
    world.add("ann")
    world.add("bob")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    conversations, logins = world.accounts.conversations, world.accounts.logins
    mine, his = conversations.key(ann, None), conversations.key(bob, None)
    before, bobs = logins.identify(ann).pages, logins.identify(bob).pages
    assert conversations.forget(ann, None) == 1
    after = logins.identify(ann).pages
    assert (after.shared_key, after.shared_key_id) != (before.shared_key, before.shared_key_id)
    with pytest.raises(AccountsError, match="no such conversation"):
        conversations.key(ann, mine.conversation_id)
    assert conversations.key(bob, his.conversation_id) == his
    assert logins.identify(bob).pages == bobs
    assert conversations.forget(ann, None) == 0
