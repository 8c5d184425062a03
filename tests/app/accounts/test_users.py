from typing import Any

import pytest

from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.logins import new_password
from app.accounts.store import Actor
from app.messages.accounts import AccountsError, Refusal, UserChange, UserLimits
from tests.app.accounts.world import CHEAP, PASSWORD, World

NEW = new_password("another long password", CHEAP)


def refused(call: Any, *arguments: Any) -> Refusal:
    with pytest.raises(AccountsError) as error:
        call(*arguments)
    return error.value.refusal


def test_users_are_listed_by_name(world: World) -> None:
    limits = UserLimits(requests_per_minute=3)
    world.add("Bob", role="admin")
    world.add("ann", limits=limits)
    ann, bob = world.accounts.users.all(OPERATOR_ACTS)
    assert (ann.name, ann.role, ann.state, ann.limits) == ("ann", "user", "active", limits)
    assert (bob.name, bob.role, bob.limits) == ("bob", "admin", UserLimits())


@pytest.mark.parametrize("name", ["", " ann", "a b", "-ann", "a/b", "a\nb", "x" * 65, "ann\x00"])
def test_a_name_that_is_none_is_refused(world: World, name: str) -> None:
    refusal = refused(world.accounts.users.add, OPERATOR_ACTS, name, NEW, "user", UserLimits())
    assert (refusal.code, refusal.param) == ("invalid_value", "name")


@pytest.mark.parametrize("same", ["ann", "ANN", "Ann"])
def test_a_name_is_given_once(world: World, same: str) -> None:
    world.add("ann")
    assert refused(world.accounts.users.add, OPERATOR_ACTS, same, NEW, "user", UserLimits()).code == "conflict"


@pytest.mark.parametrize("method", ["all", "add", "change", "delete", "reset_password"])
def test_only_administrators_administer(world: World, method: str) -> None:
    ann = world.add("ann").info
    arguments: dict[str, tuple[Any, ...]] = {
        "all": (),
        "add": ("bob", NEW, "user", UserLimits()),
        "change": ("ann", UserChange(role="admin")),
        "delete": ("ann",),
        "reset_password": ("ann", NEW, None),
    }
    call = getattr(world.accounts.users, method)
    assert refused(call, Actor(ann.id, "user"), *arguments[method]).code == "admin_only"
    call(OPERATOR_ACTS, *arguments[method])


def test_a_disabled_user_has_no_access_until_enabled_again(world: World) -> None:
    world.add("ann")
    session = world.log_in("ann")
    key = world.accounts.logins.add_key(session, "", None).secret
    world.accounts.users.change(OPERATOR_ACTS, "ann", UserChange(state="disabled"))
    assert (world.refusal(session), world.refusal(key)) == ("session_expired", "invalid_api_key")
    with pytest.raises(AccountsError, match="wrong"):
        world.log_in("ann")
    world.accounts.users.change(OPERATOR_ACTS, "ann", UserChange(state="active"))
    assert world.refusal(key) is None


def test_limits_are_the_users_own_or_the_services(tmp_path: Any) -> None:
    world = World(str(tmp_path / "db"), limits={"requests_per_minute": 10, "concurrent": 2})
    world.add("ann", limits=UserLimits(requests_per_minute=99, tokens_per_day=1000))
    token = world.log_in("ann")
    assert world.accounts.logins.identify(token).limits == UserLimits(99, 1000, 2, None)
    world.accounts.users.change(OPERATOR_ACTS, "ann", UserChange(limits=UserLimits()))
    assert world.accounts.logins.identify(token).limits == UserLimits(10, None, 2, None)
    world.accounts.close()


def test_the_last_administrator_stays(world: World) -> None:
    world.add("root", role="admin")
    world.add("ann")
    users = world.accounts.users
    for call in (
        lambda: users.delete(OPERATOR_ACTS, "root"),
        lambda: users.change(OPERATOR_ACTS, "root", UserChange(role="user")),
        lambda: users.change(OPERATOR_ACTS, "root", UserChange(state="disabled")),
    ):
        assert refused(call).code == "conflict"
    assert world.log_in("root")
    users.delete(OPERATOR_ACTS, "ann")
    world.add("second", role="admin")
    users.delete(OPERATOR_ACTS, "root")


def test_a_reset_with_the_recovery_code_keeps_the_memory_and_without_it_loses_it(world: World) -> None:
    code = world.add("ann").recovery_code
    session = world.log_in("ann")
    key = world.accounts.logins.add_key(session, "", None).secret
    pages = world.accounts.logins.identify(session).pages
    conversation = world.accounts.conversations.key(session, None)
    users = world.accounts.users

    wrong = refused(
        users.reset_password, OPERATOR_ACTS, "ann", NEW, code.replace(code[0], "A" if code[0] != "A" else "B")
    )
    assert (wrong.code, wrong.param) == ("invalid_value", "recovery_code")
    assert world.refusal(session) is None

    kept = users.reset_password(OPERATOR_ACTS, "ann", NEW, code.lower().replace("-", " "))
    assert not kept.memory_lost
    assert (world.refusal(session), world.refusal(key)) == ("session_expired", "invalid_api_key")
    with pytest.raises(AccountsError, match="wrong"):
        world.log_in("ann", PASSWORD)
    session = world.log_in("ann", "another long password")
    assert world.accounts.logins.identify(session).pages == pages
    assert world.accounts.conversations.key(session, None) == conversation
    assert refused(users.reset_password, OPERATOR_ACTS, "ann", NEW, code).param == "recovery_code"  # used up

    lost = users.reset_password(OPERATOR_ACTS, "ann", NEW, None)
    assert lost.memory_lost
    session = world.log_in("ann", "another long password")
    assert world.accounts.logins.identify(session).pages.names_key != pages.names_key
    assert world.accounts.conversations.key(session, None).key != conversation.key
    assert users.reset_password(OPERATOR_ACTS, "ann", NEW, lost.recovery_code).memory_lost is False


@pytest.mark.parametrize("method", ["change", "delete", "reset_password"])
def test_a_user_that_is_not_there(world: World, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"change": (UserChange(),), "delete": (), "reset_password": (NEW, None)}
    assert (
        refused(getattr(world.accounts.users, method), OPERATOR_ACTS, "nobody", *arguments[method]).code == "not_found"
    )
