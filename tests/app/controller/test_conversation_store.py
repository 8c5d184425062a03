"""The client and the service with it, pickled between them as Ray does, and without Ray."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from app.accounts import service as service_module
from app.accounts.accounts import Accounts
from app.accounts.service import AccountsService
from app.accounts.store import open_store
from app.controller.accounts_client import ServeAccounts
from app.messages.accounts import AccountsClient, AccountsError, Forgotten
from app.messages.stored import ConversationStore, NewItem, StoredResponse
from app.settings.accounts import AccountsSettings
from tests.app.accounts.world import CHEAP, KEK, World, prepare

HERS = f"conv_{'a' * 32}"
ITEM = NewItem("item", b"sealed")
RESPONSE = StoredResponse("hers", 0, None, None, b"input", b"answer")

# What somebody who shows `secret` tries on what is ann's. None: it changes nothing, and answers with nothing.
ATTACKS: dict[str, tuple[Callable[[ConversationStore, str], Any], str | None]] = {
    "new_conversation": (lambda store, secret: store.new_conversation(secret, HERS, b"x", [ITEM]), "conflict"),
    "conversations": (lambda store, secret: store.conversations(secret, HERS, 9), "not_found"),
    "conversation": (lambda store, secret: store.conversation(secret, HERS), "not_found"),
    "change_conversation": (lambda store, secret: store.change_conversation(secret, HERS, b"x"), "not_found"),
    "delete_conversation": (lambda store, secret: store.delete_conversation(secret, HERS), "not_found"),
    "restore_conversation": (lambda store, secret: store.restore_conversation(secret, HERS), "not_found"),
    "items": (
        lambda store, secret: store.items(secret, HERS, after=None, limit=9, newest_first=True),
        "not_found",
    ),
    "item": (lambda store, secret: store.item(secret, HERS, "item"), "not_found"),
    "add_items": (lambda store, secret: store.add_items(secret, HERS, [NewItem("more", b"")]), "not_found"),
    "delete_item": (lambda store, secret: store.delete_item(secret, HERS, "item"), "not_found"),
    "begin_turn": (lambda store, secret: store.begin_turn(secret, HERS, "resp_1"), "not_found"),
    "add_question": (lambda store, secret: store.add_question(secret, HERS, [NewItem("more", b"")], 2), "not_found"),
    "end_turn": (lambda store, secret: store.end_turn(secret, HERS, 2), None),
    "begin_response": (
        lambda store, secret: store.begin_response(secret, StoredResponse("his", 0, HERS, None, b"", b"")),
        "not_found",
    ),
    "store_response": (
        lambda store, secret: store.store_response(
            secret, StoredResponse("his", 0, HERS, None, b"", b""), [NewItem("more", b"")], 2
        ),
        "not_found",
    ),
    "response": (lambda store, secret: store.response(secret, "hers"), "not_found"),
    "history": (lambda store, secret: store.history(secret, "hers"), "not_found"),
    "delete_response": (lambda store, secret: store.delete_response(secret, "hers"), "not_found"),
}


class Handle:
    """A Serve handle of a service in this process."""

    def __init__(self, service: AccountsService) -> None:
        self._service = service

    @property
    def call(self) -> Any:
        class Method:
            @staticmethod
            async def remote(method: str, *arguments: Any) -> Any:
                sent = pickle.loads(pickle.dumps(arguments))
                return pickle.loads(pickle.dumps(await self._service.call(method, *sent)))

        return Method


class Site:
    def __init__(self, database: str) -> None:
        world = World(prepare(database))
        world.add("ann")
        world.add("bob", role="admin")
        self.ann, self.bob, self.clock = world.log_in("ann"), world.log_in("bob"), world.clock
        world.accounts.close()
        self._settings = world.settings
        self.start()

    def start(self) -> None:
        def opened(settings: AccountsSettings) -> Accounts:
            return Accounts(open_store(settings, KEK, make=False, now=self.clock, password_cost=CHEAP))

        self.service = AccountsService(self._settings, opened)
        handle: Any = Handle(self.service)
        self.store, self.other = ServeAccounts(handle, "one"), ServeAccounts(handle, "two")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(str(tmp_path / "accounts.db"))
    yield site
    site.service.close()
    for task in [*site.service._tasks]:
        task.cancel()


async def code(answer: Any) -> str | None:
    try:
        await answer
    except AccountsError as error:
        return error.refusal.code
    return None


def methods(protocol: type) -> set[str]:
    return {name for name, value in vars(protocol).items() if not name.startswith("_") and callable(value)}


async def test_a_life_of_a_conversation_through_the_client(site: Site) -> None:
    store: ConversationStore = site.store
    users: AccountsClient = site.store
    made = await store.new_conversation(site.ann, HERS, b"title", [ITEM])
    assert (made.id, made.items, made.sealed) == (HERS, 1, b"title")
    assert await store.conversations(site.ann, None, 9) == [made]
    assert await store.conversation(site.ann, HERS) == made
    assert (await store.change_conversation(site.ann, HERS, b"other")).sealed == b"other"
    assert (await store.add_items(site.ann, HERS, [NewItem("b", b"B")])).items == 2
    (last,) = await store.items(site.ann, HERS, after=None, limit=1, newest_first=True)
    assert (last.id, last.sealed) == ("b", b"B")
    assert await store.items(site.ann, HERS, after="item", limit=9, newest_first=False) == [last]
    assert await store.item(site.ann, HERS, "b") == last
    assert (await store.delete_item(site.ann, HERS, "item")).items == 1
    turn = (await store.begin_turn(site.ann, HERS, "resp_1")).seq
    await store.end_turn(site.ann, HERS, turn)
    turn = (await store.begin_turn(site.ann, HERS, "resp_1")).seq
    await store.store_response(site.ann, StoredResponse("r1", 0, HERS, None, b"in", b"out"), [ITEM], turn)
    await store.begin_response(site.ann, StoredResponse("r2", 0, None, "r1", b"in", b"nothing yet"))
    assert (await store.response(site.ann, "r2")).is_open
    await store.store_response(site.ann, StoredResponse("r2", 0, None, "r1", b"in", b"out"), [], None)
    assert (await store.response(site.ann, "r1")).conversation_id == HERS
    assert [each.id for each in await store.history(site.ann, "r2")] == ["r1", "r2"]
    await store.delete_response(site.ann, "r1")
    assert [each.id for each in await store.history(site.ann, "r2")] == ["r2"]
    key = await users.conversation_key(site.ann, HERS)
    assert await users.forget(site.ann, HERS) == Forgotten(1, key.key_id)
    key = await users.conversation_key(site.ann, HERS)
    assert await store.delete_conversation(site.ann, HERS) == Forgotten(1, key.key_id)
    assert await store.delete_conversation(site.ann, None) == Forgotten(0, None)
    assert await code(store.response(site.ann, "r2")) == "not_found"


def test_every_method_is_attacked() -> None:
    assert set(ATTACKS) == methods(ConversationStore)
    assert methods(AccountsClient) | methods(ConversationStore) <= set(dir(ServeAccounts))


@pytest.mark.parametrize("method", ATTACKS)
async def test_another_users_texts_are_not_there_and_no_credential_is_nobody(site: Site, method: str) -> None:
    await site.store.new_conversation(site.ann, HERS, b"title", [ITEM])
    await site.store.store_response(site.ann, RESPONSE, [], None)
    running = await site.store.begin_turn(site.ann, HERS, "resp_1")
    assert running.seq == 2
    before = await site.store.items(site.ann, HERS, after=None, limit=9, newest_first=False)
    attack, expected = ATTACKS[method]
    assert await code(attack(site.store, site.bob)) == expected
    outsider = None if method == "end_turn" else "invalid_api_key"
    assert await code(attack(site.store, "")) == await code(attack(site.store, site.ann[5:])) == outsider
    assert await site.store.conversation(site.ann, HERS) == running
    assert await site.store.items(site.ann, HERS, after=None, limit=9, newest_first=False) == before
    assert await site.store.response(site.ann, "hers") == (await site.store.history(site.ann, "hers"))[0]
    assert await code(site.other.begin_turn(site.ann, HERS, "resp_1")) == "conversation_conflict"  # hers runs on
    assert await site.store.conversations(site.bob, None, 9) == []


async def test_what_is_not_there_is_refused_in_the_same_words(site: Site) -> None:
    await site.store.new_conversation(site.ann, HERS, b"title", [ITEM])
    await site.store.store_response(site.ann, RESPONSE, [], None)
    words = []
    for conversation_id, response_id in [(HERS, "hers"), (f"conv_{'b' * 32}", "nobodys")]:
        for call in (
            site.store.conversation(site.bob, conversation_id),
            site.store.begin_turn(site.bob, conversation_id, "resp_1"),
            site.store.response(site.bob, response_id),
            site.store.history(site.bob, response_id),
            site.store.delete_response(site.bob, response_id),
        ):
            with pytest.raises(AccountsError) as error:
                await call
            words.append(error.value.refusal)
    assert words[:5] == words[5:]


@pytest.mark.parametrize("turns_of_the_loop", range(6))
async def test_a_turn_whose_client_gives_up_while_it_begins_holds_no_conversation(
    site: Site, turns_of_the_loop: int
) -> None:
    await site.store.new_conversation(site.ann, HERS, b"", [])
    call = asyncio.create_task(site.service.begin_turn("one", site.ann, HERS, "resp_1"))
    for _ in range(turns_of_the_loop):  # the work has not begun, runs, or is done
        await asyncio.sleep(0)
    is_cancelled = call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    if not is_cancelled:
        await site.store.end_turn(site.ann, HERS, call.result().seq)  # type: ignore[union-attr]
    await asyncio.gather(*site.service._tasks)
    assert (await site.store.begin_turn(site.ann, HERS, "resp_1")).seq >= 1


async def test_a_lost_ingress_holds_no_conversation_and_old_responses_go(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_WRITE_PERIOD_S", 0.01)
    monkeypatch.setattr(service_module, "_SWEEP_PERIOD_S", 0.01)
    await site.store.new_conversation(site.ann, HERS, b"", [])
    await site.store.store_response(site.ann, RESPONSE, [], None)
    await site.store.revocations("", 0)
    turn = (await site.store.begin_turn(site.ann, HERS, "resp_1")).seq
    assert await code(site.other.begin_turn(site.ann, HERS, "resp_1")) == "conversation_conflict"
    monkeypatch.setattr(service_module, "_LOST_AFTER_S", 0.0)
    async with asyncio.timeout(60):  # the ingress asks for revocations no more
        while await code(site.other.begin_turn(site.ann, HERS, "resp_1")):
            await asyncio.sleep(0.02)
    late = StoredResponse("late", 0, HERS, None, b"", b"")
    assert await code(site.store.store_response(site.ann, late, [ITEM], turn)) == "conversation_conflict"
    assert (await site.store.response(site.ann, "hers")).id == "hers"
    site.clock.now_s += 30 * 86_400
    session = await site.store.login("ann", "a long enough password", None)
    async with asyncio.timeout(60):
        while await code(site.store.response(session.token, "hers")) is None:
            await asyncio.sleep(0.02)
    assert (await site.store.conversation(session.token, HERS)).items == 0


async def test_a_turn_outlives_the_accounts(site: Site) -> None:
    await site.store.new_conversation(site.ann, HERS, b"", [])
    turn = (await site.store.begin_turn(site.ann, HERS, "resp_1")).seq
    site.service.close()
    site.start()
    response = StoredResponse("r", 0, HERS, None, b"", b"")
    await site.store.store_response(site.ann, response, [ITEM], turn)
    assert (await site.store.conversation(site.ann, HERS)).items == 1


async def test_a_change_is_heard_by_ingresses(site: Site) -> None:
    await site.store.new_conversation(site.ann, HERS, b"", [])
    user_id = (await site.store.identify(site.ann)).user_id
    first = await site.store.revocations("", 0)
    news = asyncio.create_task(site.store.revocations(first.instance, first.position))
    await asyncio.sleep(0.05)
    await site.store.delete_conversation(site.ann, HERS)
    assert (await asyncio.wait_for(news, 60)).subjects == frozenset({user_id})
