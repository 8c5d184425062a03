"""Whoever has the disk, with or without the server's key, and one user's password, reads nothing of other users."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.credentials import recovery_secret
from app.accounts.keys import RootKey, derive
from app.accounts.passwords import new_password
from app.messages.accounts import AccountsError, UserLimits
from app.messages.stored import NewItem, StoredResponse
from app.sealing.records import SealError, seal, unseal
from tests.app.accounts.world import CHEAP, KEK, PASSWORD, World


def test_nothing_of_a_user_is_readable_on_the_disk(world: World) -> None:
    code = world.add("annabella-canary").recovery_code
    session = world.log_in("annabella-canary")
    key = world.accounts.api_keys.add(session, "label-canary", None).secret
    conversation = world.accounts.conversations.key(key, "chat-canary")
    identity = world.accounts.logins.identify(key)
    pages, texts = identity.pages, [b"title-canary", b"item-canary", b"input-canary", b"answer-canary"]
    title, item, question, answer = (seal(identity.texts_key, text, "a text") for text in texts)
    world.accounts.stored_conversations.new(key, f"conv_{'1' * 32}", title, [NewItem("item", item)])
    response = StoredResponse("response", 0, None, None, question, answer)
    world.accounts.stored_responses.add(key, response, [], None)
    canaries = [
        *texts,
        identity.texts_key,
        b"annabella-canary",
        b"label-canary",
        b"chat-canary",
        PASSWORD.encode(),
        session.encode(),
        key.encode(),
        key[-43:].encode(),
        code.encode(),
        recovery_secret(code),
        KEK,
        conversation.key,
        pages.names_key,
        pages.shared_key,
        pages.owner.encode(),
    ]
    for _ in range(2):
        stored = b"".join(path.read_bytes() for path in Path(world.settings.database).parent.iterdir())
        assert len(stored) > 10_000
        assert [canary for canary in canaries if canary in stored] == []
        assert all(sealed in stored for sealed in (title, item, question, answer))
        world.accounts.close()  # and once more, closed
    world.opened()


def test_a_forgotten_key_is_not_left_in_the_file(world: World) -> None:
    world.add("ann")
    session = world.log_in("ann")
    world.accounts.conversations.key(session, "chat")
    with world.accounts.store.transaction() as connection:
        (sealed,) = connection.execute(tables.conversations.select()).scalars("wrapped_ck")
    database = Path(world.settings.database)
    assert sealed in database.read_bytes()
    world.accounts.conversations.forget(session, "chat")
    assert not any(sealed in path.read_bytes() for path in database.parent.iterdir())


def secrets_of(world: World, name: str) -> tuple[list[bytes], list[tuple[bytes, str, str]]]:
    """The user's hashed password, and what the disk has: sealed keys, user and credential."""
    challenge = world.accounts.logins.challenge(name)
    with world.accounts.store.transaction() as connection:
        sealed = [
            (row.wrapped_umk, row.user_id, row.id)
            for row in connection.execute(tables.credentials.select())
            if row.user_id == challenge.user_id
        ]
    return [challenge.stretched(f"{name}, a long password")], sealed


def test_the_servers_key_and_one_password_open_that_user_alone(world: World) -> None:
    for name in ("ann", "bob"):
        password = new_password(f"{name}, a long password", CHEAP)
        world.accounts.users.add(OPERATOR_ACTS, name, password, "user", UserLimits())
    root = world.accounts.store.root
    (known,), anns = secrets_of(world, "ann")
    _, bobs = secrets_of(world, "bob")
    assert [opens(root, known, *each) for each in anns].count(True) == 1
    assert not any(opens(root, known, *each) for each in bobs)
    # Nothing that the server alone has opens anything; nor does another root key with the password.
    for secret, each in product((KEK, root._root, b"", bytes(32)), [*anns, *bobs]):
        assert not opens(root, secret, *each)
    assert not any(opens(RootKey.new(), known, *each) for each in anns)


def opens(root: RootKey, secret: bytes, wrapped: bytes, user_id: str, credential: str) -> bool:
    try:
        root.unwrap(wrapped, secret, user_id, credential)
    except SealError:
        return False
    return True


def test_sealed_records_cannot_be_swapped_between_users_and_conversations(world: World) -> None:
    for name in ("ann", "bob"):
        world.add(name)
    ann, bob = world.log_in("ann"), world.log_in("bob")
    conversations = world.accounts.conversations
    first, second, his = conversations.key(ann, "1"), conversations.key(ann, "2"), conversations.key(bob, "3")
    for source, target, name in [(first, second, "2"), (his, first, "1")]:
        before = wrapped_ck(world, target.conversation_id)
        put_wrapped_ck(world, target.conversation_id, wrapped_ck(world, source.conversation_id))
        with pytest.raises(SealError):
            conversations.key(ann, name)
        put_wrapped_ck(world, target.conversation_id, before)
    assert conversations.key(ann, "1") == first
    # Another user's conversation, moved to ann's row, does not open either.
    mine = world.accounts.logins.identify(ann).user_id
    with world.accounts.store.transaction() as connection:
        mac = select(tables.conversations.c.name_mac).where(tables.conversations.c.id == first.conversation_id)
        name_mac = connection.execute(mac).scalar_one()
        connection.execute(delete(tables.conversations).where(tables.conversations.c.id == first.conversation_id))
        moved = update(tables.conversations).where(tables.conversations.c.id == his.conversation_id)
        connection.execute(moved.values(user_id=mine, name_mac=name_mac))
    with pytest.raises(SealError):
        conversations.key(ann, "1")


def wrapped_ck(world: World, conversation_id: str) -> bytes:
    with world.accounts.store.transaction() as connection:
        rows = connection.execute(tables.conversations.select()).all()
    return next(bytes(row.wrapped_ck) for row in rows if row.id == conversation_id)


def put_wrapped_ck(world: World, conversation_id: str, value: bytes) -> None:
    with world.accounts.store.transaction() as connection:
        where = tables.conversations.c.id == conversation_id
        connection.execute(update(tables.conversations).where(where).values(wrapped_ck=value))


def test_a_password_hash_that_was_swapped_in_gives_no_access(world: World) -> None:
    """An attacker who copies another credential's row gains nothing: it is sealed for its own user and id."""
    for name in ("ann", "bob"):
        world.add(name)
    anns, bobs = (world.accounts.logins.challenge(name) for name in ("ann", "bob"))
    with world.accounts.store.transaction() as connection:
        values: dict[str, Any] = {"salt": anns.salt, "wrapped_umk": anns.wrapped_umk}
        where = tables.credentials.c.id == bobs.credential_id
        connection.execute(update(tables.credentials).where(where).values(**values))
    with pytest.raises(AccountsError, match="wrong"):
        world.log_in("bob")


def test_the_root_key_is_not_the_servers_key(world: World) -> None:
    with world.accounts.store.transaction() as connection:
        rows = {row.name: bytes(row.value) for row in connection.execute(tables.meta.select())}
    assert unseal(derive(KEK, "root key"), rows["root_key"], "root key") != KEK
