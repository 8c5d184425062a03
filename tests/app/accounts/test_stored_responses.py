from collections.abc import Sequence

import pytest

from app.accounts import stored_responses as responses_module
from app.messages.accounts import AccountsError
from app.messages.stored import NewItem, StoredResponse
from tests.app.accounts.world import World

CHAT = f"conv_{'1' * 32}"


@pytest.fixture
def ann(world: World) -> str:
    """A session of ann."""
    world.add("ann")
    return world.log_in("ann")


def response(id_: str, previous: str | None = None, conversation: str | None = None) -> StoredResponse:
    return StoredResponse(id_, 0, conversation, previous, f"input of {id_}".encode(), f"answer of {id_}".encode())


def store(
    world: World, secret: str, it: StoredResponse, items: Sequence[NewItem] = (), turn: int | None = None
) -> str | None:
    """The refusal's code."""
    try:
        world.accounts.stored_responses.add(secret, it, items, turn)
    except AccountsError as error:
        return error.refusal.code
    return None


def history(world: World, secret: str, id_: str) -> list[str]:
    return [each.id for each in world.accounts.stored_responses.history(secret, id_)]


def items(world: World, secret: str) -> list[str]:
    return [it.id for it in world.accounts.stored_conversations.items(secret, CHAT, None, 99, newest_first=False)]


def test_responses_and_what_they_go_on_from(world: World, ann: str) -> None:
    for id_, previous in [("a", None), ("b", "a"), ("c", "b"), ("d", "b")]:
        assert store(world, ann, response(id_, previous)) is None
    world.reopen()
    stored = world.accounts.stored_responses
    one = stored.get(ann, "b")
    assert one == StoredResponse("b", 1_800_000_000, None, "a", b"input of b", b"answer of b")
    assert history(world, ann, "c") == ["a", "b", "c"]
    assert history(world, ann, "d") == ["a", "b", "d"]
    assert history(world, ann, "a") == ["a"]
    stored.delete(ann, "a")
    assert history(world, ann, "c") == ["b", "c"]
    for missing in ("a", "", "\0", "x" * 99):
        for method in (stored.get, stored.history, stored.delete):
            with pytest.raises(AccountsError, match="no such response"):
                method(ann, missing)


def test_a_history_is_bounded_and_has_each_response_once(
    world: World, ann: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_module, "MOST_HISTORY", 4)
    for number in range(6):
        store(world, ann, response(f"r{number}", f"r{number - 1}"))
    assert history(world, ann, "r5") == ["r2", "r3", "r4", "r5"]
    store(world, ann, response("ring1", "ring2"))
    store(world, ann, response("ring2", "ring1"))
    store(world, ann, response("self", "self"))
    assert history(world, ann, "ring1") == ["ring2", "ring1"]
    assert history(world, ann, "self") == ["self"]


def test_a_history_does_not_lead_to_another_users(world: World, ann: str) -> None:
    world.add("bob")
    bob = world.log_in("bob")
    store(world, ann, response("hers"))
    assert store(world, bob, response("his", "hers")) is None
    assert history(world, bob, "his") == ["his"]
    assert store(world, bob, response("hers")) == "conflict"
    for method in (world.accounts.stored_responses.get, world.accounts.stored_responses.history):
        with pytest.raises(AccountsError, match="no such response"):
            method(bob, "hers")


@pytest.mark.parametrize(
    ("it", "its_items", "turn"),
    [
        (response(""), [], None),
        (response("a b"), [], None),
        (response("a", "\0"), [], None),
        (response("a"), [NewItem("i", b"")], None),
        (response("a"), [], 1),
    ],
)
def test_what_is_no_response_is_refused(
    world: World, ann: str, it: StoredResponse, its_items: list[NewItem], turn: int | None
) -> None:
    assert store(world, ann, it, its_items, turn) == "invalid_value"


def test_responses_outside_a_conversation_are_deleted_after_some_days(world: World, ann: str) -> None:
    turn = world.accounts.stored_conversations.new(ann, CHAT, b"", []).seq
    assert store(world, ann, response("in", conversation=CHAT), turn=turn) is None
    assert store(world, ann, response("old")) is None
    world.clock.now_s += 30 * 86_400 - 1
    ann = world.log_in("ann")  # the previous session has ended
    assert store(world, ann, response("new", "old")) is None
    assert world.accounts.stored_responses.delete_old() == 0
    world.clock.now_s += 1
    assert world.accounts.stored_responses.delete_old() == 1
    assert history(world, ann, "new") == ["new"]
    assert world.accounts.stored_responses.get(ann, "in").conversation_id == CHAT


# --- turns ------------------------------------------------------------------------------------------------------------


def refusal(world: World, method: str, *arguments: object) -> str | None:
    try:
        getattr(world.accounts.stored_conversations, method)(*arguments)
    except AccountsError as error:
        return error.refusal.code
    return None


def test_while_a_turn_runs_nobody_else_changes_the_items(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    stored.new(ann, CHAT, b"", [NewItem("a", b"")])
    key = world.accounts.api_keys.add(ann, "", None).secret
    turn = stored.begin_turn(ann, "one", CHAT, "resp_1").seq
    for secret in (ann, key):
        for ingress in ("one", "two"):
            assert refusal(world, "begin_turn", secret, ingress, CHAT, "resp_9") == "conversation_conflict"
        assert refusal(world, "add_items", secret, CHAT, [NewItem("b", b"")]) == "conversation_conflict"
        assert refusal(world, "delete_item", secret, CHAT, "a") == "conversation_conflict"
    stored.end_turn(key, CHAT, turn)  # not the credential that began it
    stored.end_turn(ann, CHAT, turn + 1)
    assert refusal(world, "begin_turn", ann, "one", CHAT, "resp_9") == "conversation_conflict"
    assert stored.change(ann, CHAT, b"title").sealed == b"title"
    assert store(world, ann, response("r", conversation=CHAT), [NewItem("b", b""), NewItem("c", b"")], turn) is None
    assert items(world, ann) == ["a", "b", "c"]
    assert store(world, ann, response("r2", conversation=CHAT), [], turn) == "conversation_conflict"
    turn = stored.begin_turn(key, "two", CHAT, "resp_1").seq
    stored.end_turn(key, CHAT, turn)
    stored.end_turn(key, CHAT, turn)
    assert refusal(world, "add_items", ann, CHAT, [NewItem("d", b"")]) is None
    assert store(world, key, response("r3", conversation=CHAT), [], turn) == "conversation_conflict"


def test_a_turn_that_is_stored_without_room_or_right_has_ended(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    stored.new(ann, CHAT, b"", [NewItem("a", b"")])
    key = world.accounts.api_keys.add(ann, "", None)
    turn = stored.begin_turn(ann, "one", CHAT, "resp_1").seq
    assert store(world, ann, response("r", conversation=CHAT), [NewItem("a", b"")], turn) == "conflict"
    turn = stored.begin_turn(key.secret, "one", CHAT, "resp_1").seq
    world.accounts.api_keys.revoke(ann, key.info.id)
    assert store(world, key.secret, response("r", conversation=CHAT), [], turn) == "invalid_api_key"
    turn = stored.begin_turn(ann, "one", CHAT, "resp_1").seq
    assert (items(world, ann), turn > 2) == (["a"], True)
    world.accounts.logins.log_out(ann, everywhere=False)
    stored.end_turn(ann, CHAT, turn)  # its credential has ended, but the conversation must not stay locked
    again = world.log_in("ann")
    assert refusal(world, "begin_turn", again, "one", CHAT, "resp_9") is None


def test_a_conversation_that_is_deleted_in_a_turn_stays_deleted(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    stored.new(ann, CHAT, b"", [])
    turn = stored.begin_turn(ann, "one", CHAT, "resp_1").seq
    assert stored.delete(ann, CHAT).conversations == 1
    assert store(world, ann, response("r", conversation=CHAT), [NewItem("a", b"")], turn) == "not_found"
    with pytest.raises(AccountsError, match="no such response"):
        world.accounts.stored_responses.get(ann, "r")


@pytest.mark.parametrize("meanwhile", ["nothing", "an item comes", "an item goes", "a turn begins", "a turn ends"])
def test_a_turn_from_before_a_restart_is_stored_only_if_nothing_came_between(
    world: World, ann: str, meanwhile: str
) -> None:
    world.accounts.stored_conversations.new(ann, CHAT, b"", [NewItem("a", b""), NewItem("b", b"")])
    turn = world.accounts.stored_conversations.begin_turn(ann, "one", CHAT, "resp_1").seq
    world.reopen()  # the turn is forgotten
    stored = world.accounts.stored_conversations
    others = 0
    if meanwhile == "an item comes":
        stored.add_items(ann, CHAT, [NewItem("other", b"")])
    elif meanwhile == "an item goes":
        stored.delete_item(ann, CHAT, "b")
    elif meanwhile != "nothing":
        others = stored.begin_turn(ann, "one", CHAT, "resp_1").seq
    if meanwhile == "a turn ends":
        stored.end_turn(ann, CHAT, others)
    before = items(world, ann)
    answer = store(world, ann, response("r", conversation=CHAT), [NewItem("answer", b"")], turn)
    assert answer == (None if meanwhile == "nothing" else "conversation_conflict")
    assert items(world, ann) == (before if answer else [*before, "answer"])
    if meanwhile == "a turn begins":  # the old turn must not replace it
        assert refusal(world, "add_items", ann, CHAT, []) == "conversation_conflict"
        assert store(world, ann, response("r2", conversation=CHAT), [NewItem("mine", b"")], others) is None


def test_lost_ingresses_and_forgotten_turns_hold_no_conversation(world: World, ann: str) -> None:
    stored = world.accounts.stored_conversations
    stored.new(ann, CHAT, b"", [])
    stored.begin_turn(ann, "one", CHAT, "resp_1")
    world.accounts.turns.ingress_lost("two")
    assert refusal(world, "add_items", ann, CHAT, []) == "conversation_conflict"
    world.accounts.turns.ingress_lost("one")
    first = stored.begin_turn(ann, "two", CHAT, "resp_1").seq
    world.clock.now_s += 3599
    assert refusal(world, "begin_turn", ann, "two", CHAT, "resp_9") == "conversation_conflict"
    world.clock.now_s += 1
    second = stored.begin_turn(ann, "two", CHAT, "resp_1").seq
    assert store(world, ann, response("r1", conversation=CHAT), [], first) == "conversation_conflict"
    assert refusal(world, "begin_turn", ann, "two", CHAT, "resp_9") == "conversation_conflict"  # the second one runs on
    assert store(world, ann, response("r2", conversation=CHAT), [], second) is None


# --- responses that are still written ---------------------------------------------------------------------------------


def open_one(world: World, user: str, response_id: str, conversation_id: str | None = None) -> None:
    response = StoredResponse(response_id, 0, conversation_id, None, b"asked", b"nothing yet")
    world.accounts.stored_responses.open(user, "one", response)


def test_an_open_response_is_replaced_by_its_end(world: World, ann: str) -> None:
    stored, responses = world.accounts.stored_conversations, world.accounts.stored_responses
    stored.new(ann, CHAT, b"", [])
    turn = stored.begin_turn(ann, "one", CHAT, "r")
    assert stored.get(ann, CHAT).response_id == stored.newest(ann, None, 9)[0].response_id == turn.response_id == "r"
    open_one(world, ann, "r", CHAT)
    begun = responses.get(ann, "r")
    assert (begun.is_open, begun.sealed_response, begun.conversation_id) == (True, b"nothing yet", CHAT)
    ended = StoredResponse("r", 0, CHAT, None, b"asked", b"answer", is_open=True)
    responses.add(ann, ended, [NewItem("a", b"")], turn.seq)
    one = responses.get(ann, "r")
    assert (one.is_open, one.sealed_response) == (False, b"answer")
    assert (stored.get(ann, CHAT).items, stored.get(ann, CHAT).response_id) == (1, None)
    with pytest.raises(AccountsError) as error:  # once only
        responses.add(ann, StoredResponse("r", 0, None, None, b"", b""), (), None)
    assert error.value.refusal.code == "conflict"


def test_an_open_response_of_a_lost_ingress_or_of_long_ago_is_open_no_more(world: World, ann: str) -> None:
    responses = world.accounts.stored_responses
    open_one(world, ann, "first")
    responses.ingress_lost("two")
    assert responses.get(ann, "first").is_open
    responses.ingress_lost("one")
    assert not responses.get(ann, "first").is_open
    open_one(world, ann, "second")
    world.accounts.stored_responses.other_ingresses_lost(["one", "three"])
    world.reopen()
    assert world.accounts.stored_responses.get(ann, "second").is_open
    world.clock.now_s += 3600
    assert not world.accounts.stored_responses.get(ann, "second").is_open
    open_one(world, ann, "third")
    world.accounts.stored_responses.other_ingresses_lost(["two", "three"])
    assert not world.accounts.stored_responses.get(ann, "third").is_open


def test_a_deleted_open_response_does_not_come_back(world: World, ann: str) -> None:
    stored, responses = world.accounts.stored_conversations, world.accounts.stored_responses
    stored.new(ann, CHAT, b"", [])
    turn = stored.begin_turn(ann, "one", CHAT, "r").seq
    open_one(world, ann, "r", CHAT)
    responses.delete(ann, "r")
    with pytest.raises(AccountsError) as error:
        responses.add(ann, StoredResponse("r", 0, CHAT, None, b"", b"", is_open=True), [NewItem("a", b"")], turn)
    assert error.value.refusal.code == "not_found"
    assert stored.get(ann, CHAT).items == 0
    assert refusal(world, "begin_turn", ann, "one", CHAT, "r2") is None


def test_nobody_else_ends_an_open_response(world: World, ann: str) -> None:
    world.add("bob")
    bob = world.log_in("bob")
    open_one(world, ann, "r")
    with pytest.raises(AccountsError) as error:
        world.accounts.stored_responses.add(bob, StoredResponse("r", 0, None, None, b"", b"his"), (), None)
    assert error.value.refusal.code == "conflict"
    assert world.accounts.stored_responses.get(ann, "r").is_open
