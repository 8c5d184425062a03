from typing import Any

import pytest

from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.passwords import new_password
from app.accounts.store import Actor
from app.messages.accounts import AccountsError, Refusal, UserChange, UserLimits
from tests.app.accounts.world import CHEAP, FIRST, PASSWORD, World, choose

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
        "reset_password": ("ann", NEW),
    }
    call = getattr(world.accounts.users, method)
    assert refused(call, Actor(ann.id, "user"), *arguments[method]).code == "admin_only"
    call(OPERATOR_ACTS, *arguments[method])


def test_a_disabled_user_has_no_access_until_enabled_again(world: World) -> None:
    world.add("ann")
    session = world.log_in("ann")
    key = world.accounts.api_keys.add(session, "", None).secret
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


def test_an_administrator_never_learns_what_opens_a_users_key(world: World) -> None:
    """Neither the first password nor its session opens anything, and only the user sees the recovery code."""
    users, logins = world.accounts.users, world.accounts.logins
    users.add(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP), "admin", UserLimits())
    early, session = world.log_in("ann", FIRST), world.log_in("ann", FIRST)
    challenge = logins.challenge("ann")
    stretched = challenge.stretched(FIRST)
    assert world.refusal(session) == "password_change_required"
    for call in (logins.sessions, world.accounts.api_keys.all, world.accounts.actor):
        assert refused(call, session).code == "password_change_required"
    assert refused(world.accounts.stored_conversations.newest, session, None, 1).code == "password_change_required"
    first = logins.identify(session, at_first=True)
    assert (first.must_choose_password, first.can_recover) == (True, False)
    changed = logins.change_password(session, challenge, stretched, NEW)
    assert changed.recovery_code
    assert not changed.memory_lost
    now = logins.identify(session)
    assert not now.must_choose_password
    assert now.texts_key != first.texts_key
    assert world.refusal(early) == "session_expired"
    with pytest.raises(AccountsError, match="wrong"):
        world.log_in("ann", FIRST)
    with pytest.raises(AccountsError, match="wrong"):
        logins.log_in(challenge, stretched)
    assert logins.change_password(session, logins.challenge("ann"), NEW.secret, NEW).recovery_code is None
    assert logins.identify(world.log_in("ann", "another long password")).texts_key == now.texts_key


def test_after_a_reset_the_user_gives_the_recovery_code_or_loses_what_was_saved(world: World) -> None:
    code = world.add("ann").recovery_code
    session = world.log_in("ann")
    key = world.accounts.api_keys.add(session, "", None).secret
    pages = world.accounts.logins.identify(session).pages
    conversation = world.accounts.conversations.key(session, None)
    users, logins = world.accounts.users, world.accounts.logins

    for _ in range(2):  # a second one too
        users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    assert (world.refusal(session), world.refusal(key)) == ("session_expired", "invalid_api_key")
    with pytest.raises(AccountsError, match="wrong"):
        world.log_in("ann", PASSWORD)
    session, challenge = world.log_in("ann", FIRST), logins.challenge("ann")
    stretched = challenge.stretched(FIRST)
    assert logins.identify(session, at_first=True).can_recover
    assert refused(logins.change_password, session, challenge, stretched, NEW).code == "recovery_code_required"
    wrong = code.replace(code[0], "A" if code[0] != "A" else "B")
    refusal = refused(logins.change_password, session, challenge, stretched, NEW, wrong)
    assert (refusal.code, refusal.param) == ("invalid_value", "recovery_code")
    kept = logins.change_password(session, challenge, stretched, NEW, code.lower().replace("-", " "))
    assert (kept.memory_lost, kept.lost_folder) == (False, None)
    assert kept.recovery_code not in (None, code)
    assert logins.identify(session).pages == pages
    assert world.accounts.conversations.key(session, None) == conversation

    users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    session, challenge = world.log_in("ann", FIRST), logins.challenge("ann")
    stretched = challenge.stretched(FIRST)
    assert refused(logins.change_password, session, challenge, stretched, NEW, code).param == "recovery_code"  # used up
    lost = logins.change_password(session, challenge, stretched, NEW, lose_saved=True)
    assert (lost.memory_lost, lost.lost_folder) == (True, pages.owner)
    assert logins.identify(session).pages.names_key != pages.names_key
    assert world.accounts.conversations.key(session, None).key != conversation.key


@pytest.mark.parametrize("method", ["change", "delete", "reset_password"])
def test_a_user_that_is_not_there(world: World, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"change": (UserChange(),), "delete": (), "reset_password": (NEW,)}
    assert (
        refused(getattr(world.accounts.users, method), OPERATOR_ACTS, "nobody", *arguments[method]).code == "not_found"
    )


def test_a_password_for_the_first_login_holds_some_days(world: World) -> None:
    users, logins = world.accounts.users, world.accounts.logins
    ann = users.add(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP), "user", UserLimits())
    assert ann.first_password_expires == world.clock.now_s + 7 * 86_400
    world.clock.now_s += 7 * 86_400 - 1
    session, challenge = world.log_in("ann", FIRST), logins.challenge("ann")
    world.clock.now_s += 1
    with pytest.raises(AccountsError, match="Name or password is wrong"):  # nobody else learns that there was one
        world.log_in("ann", PASSWORD)
    with pytest.raises(AccountsError, match=r"held until .* Ask an administrator for another one") as error:
        world.log_in("ann", FIRST)
    assert error.value.refusal.code == "password_expired"
    with pytest.raises(AccountsError, match="Ask an administrator"):  # nor with an earlier session
        logins.change_password(session, challenge, challenge.stretched(FIRST), NEW)
    assert [user.first_password_expires for user in users.all(OPERATOR_ACTS)] == [ann.first_password_expires]
    anew = users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    assert anew.first_password_expires == world.clock.now_s + 7 * 86_400
    choose(world.accounts, "ann")
    world.clock.now_s += 70 * 86_400
    assert world.log_in("ann")
    assert [user.first_password_expires for user in users.all(OPERATOR_ACTS)] == [None]
