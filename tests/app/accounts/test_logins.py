import resource

import pytest
from sqlalchemy.exc import SQLAlchemyError

from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.api_keys import MOST_KEYS
from app.accounts.passwords import new_password
from app.messages.accounts import AccountsError, UserChange, UserLimits
from tests.app.accounts.world import CHEAP, FIRST, PASSWORD, World, choose

DAY_S = 86_400


def test_a_session_is_its_users_and_outlives_a_restart(world: World) -> None:
    ann = world.add("Ann").info
    token = world.log_in("ANN")
    identity = world.accounts.logins.identify(token)
    assert (identity.user_id, identity.name, identity.role, identity.kind) == (ann.id, "ann", "user", "session")
    world.reopen()
    assert world.accounts.logins.identify(token) == identity


def test_every_credential_of_a_user_gives_the_same_page_keys_and_another_users_others(world: World) -> None:
    world.add("ann")
    world.add("bob")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    key = world.accounts.api_keys.add(ann, "laptop", None).secret
    pages = [world.accounts.logins.identify(each).pages for each in (ann, key, bob)]
    assert pages[0] == pages[1]
    for name in ("owner", "names_key", "shared_key", "shared_key_id"):
        assert getattr(pages[0], name) != getattr(pages[2], name)
    assert (len(pages[0].owner), len(pages[0].names_key), len(pages[0].shared_key_id)) == (32, 32, 16)


@pytest.mark.parametrize(
    ("name", "password"), [("ann", "wrong password"), ("nobody", PASSWORD), ("", ""), ("a b", "x")]
)
def test_a_wrong_login_is_refused_in_the_same_words(world: World, name: str, password: str) -> None:
    world.add("ann")
    with pytest.raises(AccountsError, match="Name or password is wrong") as refused:
        world.log_in(name, password)
    assert refused.value.refusal.code == "invalid_login"


def test_a_name_that_nobody_has_costs_as_much_as_one_that_somebody_has(world: World) -> None:
    world.add("ann")
    ann, nobody = world.accounts.logins.challenge("ann"), world.accounts.logins.challenge("nobody")
    assert ann.cost == nobody.cost
    assert len(ann.salt) == len(nobody.salt)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "none",
        "sk-1234567890",
        "rdbt_0123456789abcdef_" + "A" * 43,
        "rdbt_0123456789abcdef_" + "A" * 42,
        "rdbt_" + "' OR 1=1 --",
        "rdbs_" + "A" * 43,
        "\ud800",
        "x" * 100_000,
    ],
    ids=lambda secret: ascii(secret[:30]),
)
def test_what_is_no_credential_is_refused(world: World, secret: str) -> None:
    world.add("ann")
    assert world.refusal(secret) == ("session_expired" if secret.startswith("rdbs_") else "invalid_api_key")


def test_a_key_with_one_other_character_is_refused(world: World) -> None:
    world.add("ann")
    key = world.accounts.api_keys.add(world.log_in("ann"), "", None).secret
    assert world.refusal(key) is None
    for place in range(22, len(key)):
        other = key[:place] + ("A" if key[place] != "A" else "B") + key[place + 1 :]
        assert world.refusal(other) == "invalid_api_key"


def test_passwords_and_recovery_codes_are_no_api_keys(world: World) -> None:
    """Ids of other credentials are useless: only API keys are looked up by id."""
    ann = world.add("ann")
    challenge = world.accounts.logins.challenge("ann")
    secret = ann.recovery_code.replace("-", "")
    assert world.refusal(f"rdbt_{challenge.credential_id}_{secret}{'A' * 11}") == "invalid_api_key"


def test_sessions_end_by_the_accounts_clock(world: World) -> None:
    world.add("ann")
    idle, used = world.log_in("ann"), world.log_in("ann")
    for _ in range(13):
        world.clock.now_s += 7 * DAY_S / 2 * 1.9
        if world.clock.now_s < 1_800_000_000 + 89 * DAY_S:
            assert world.refusal(used) is None
    assert world.refusal(idle) == "session_expired"
    world.clock.now_s = 1_800_000_000 + 90 * DAY_S
    assert world.refusal(used) == "session_expired"


def test_a_full_disk_locks_nobody_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.add("ann")
    session = world.log_in("ann")
    conversation = world.accounts.conversations.key(session, None)
    world.clock.now_s += 3600
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file can grow, as on a full disk
    try:
        identity = world.accounts.logins.identify(session)
        with pytest.raises(SQLAlchemyError):
            world.accounts.api_keys.add(session, "", None)
        again = world.accounts.conversations.key(session, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert identity.name == "ann"
    assert again == conversation
    assert "was not written down" in caplog.text
    assert world.accounts.api_keys.all(session) == []
    world.accounts.api_keys.add(session, "", None)


@pytest.mark.parametrize("years", [-1, 1])
def test_a_clock_that_is_a_year_off_ends_sessions_at_most(world: World, years: int) -> None:
    world.add("ann")
    session = world.log_in("ann")
    key = world.accounts.api_keys.add(session, "", None).secret
    conversation = world.accounts.conversations.key(key, None)
    world.clock.now_s += years * 365 * DAY_S
    assert world.refusal(session) == (None if years < 0 else "session_expired")
    assert world.accounts.conversations.key(key, None) == conversation
    assert world.refusal(world.log_in("ann")) is None


def test_logout_ends_one_session_or_all(world: World) -> None:
    world.add("ann")
    first, second, third = (world.log_in("ann") for _ in range(3))
    key = world.accounts.api_keys.add(first, "", None).secret
    assert world.accounts.logins.log_out(first, everywhere=False) == 1
    assert [world.refusal(each) for each in (first, second, third)] == ["session_expired", None, None]
    with pytest.raises(AccountsError, match="no session"):
        world.accounts.logins.log_out(key, everywhere=False)
    assert world.accounts.logins.log_out(key, everywhere=True) == 2
    assert [world.refusal(each) for each in (second, third, key)] == ["session_expired", "session_expired", None]


def test_a_new_password_keeps_the_memory_and_ends_other_sessions(world: World) -> None:
    world.add("ann")
    mine, other = world.log_in("ann"), world.log_in("ann")
    pages = world.accounts.logins.identify(mine).pages
    challenge = world.accounts.logins.challenge_of(mine)
    new = new_password("another long password", CHEAP)
    with pytest.raises(AccountsError, match="wrong"):
        world.accounts.logins.change_password(mine, challenge, challenge.stretched("not it, not it"), new)
    world.accounts.logins.change_password(mine, challenge, challenge.stretched(PASSWORD), new)
    assert world.refusal(mine) is None
    assert world.refusal(other) == "session_expired"
    with pytest.raises(AccountsError, match="wrong"):
        world.log_in("ann")
    assert world.accounts.logins.identify(world.log_in("ann", "another long password")).pages == pages


def test_a_login_that_began_with_the_old_password_is_refused(world: World) -> None:
    world.add("ann")
    early = world.accounts.logins.challenge("ann")
    mine = world.log_in("ann")
    new = new_password("another long password", CHEAP)
    world.accounts.logins.change_password(mine, early, early.stretched(PASSWORD), new)
    with pytest.raises(AccountsError, match="wrong"):
        world.accounts.logins.log_in(early, early.stretched(PASSWORD))


def test_a_new_recovery_code_takes_the_place_of_a_lost_one(world: World) -> None:
    lost = world.add("ann").recovery_code
    session, logins = world.log_in("ann"), world.accounts.logins
    pages = logins.identify(session).pages
    challenge = logins.challenge_of(session)
    code = logins.new_recovery_code(session, challenge, challenge.stretched(PASSWORD))
    assert code != lost
    row = world.accounts.audit(OPERATOR_ACTS, 0, 100).rows[-1]
    assert (row.action, row.object) == ("new_recovery_code", logins.identify(session).credential)
    world.accounts.users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    with pytest.raises(AccountsError, match="not your recovery code"):
        choose(world.accounts, "ann", lost)
    newest = choose(world.accounts, "ann", code)
    assert logins.identify(world.log_in("ann")).pages == pages
    assert newest not in (lost, code)


def test_a_new_recovery_code_needs_the_present_password_of_the_same_user(world: World) -> None:
    code = world.add("ann").recovery_code
    world.add("bob")
    session, logins = world.log_in("ann"), world.accounts.logins
    mine, bobs = logins.challenge("ann"), logins.challenge("bob")
    for challenge, password in [(mine, "not it, not it"), (bobs, PASSWORD)]:
        with pytest.raises(AccountsError, match="wrong"):
            logins.new_recovery_code(session, challenge, challenge.stretched(password))
    logins.change_password(session, mine, mine.stretched(PASSWORD), new_password("another long password", CHEAP))
    with pytest.raises(AccountsError, match="wrong"):  # it was replaced since
        logins.new_recovery_code(session, mine, mine.stretched(PASSWORD))
    world.accounts.users.reset_password(OPERATOR_ACTS, "ann", new_password(FIRST, CHEAP))
    first = logins.challenge("ann")
    with pytest.raises(AccountsError, match="Choose a password of your own"):
        logins.new_recovery_code(world.log_in("ann", FIRST), first, first.stretched(FIRST))
    choose(world.accounts, "ann", code)  # the code is still valid


def test_another_users_challenge_changes_no_password(world: World) -> None:
    world.add("ann")
    world.add("bob")
    bobs = world.accounts.logins.challenge("bob")
    with pytest.raises(AccountsError, match="wrong"):
        world.accounts.logins.change_password(
            world.log_in("ann"), bobs, bobs.stretched(PASSWORD), new_password("another long password", CHEAP)
        )
    assert world.log_in("bob")


@pytest.mark.parametrize("password", ["", "short", "x" * 11, "x" * 1025, "x" * 100_000])
def test_a_password_of_a_wrong_length_is_refused(password: str) -> None:
    with pytest.raises(AccountsError, match="12 to 1024"):
        new_password(password, CHEAP)


def test_passwords_are_the_same_on_every_keyboard(world: World) -> None:
    # e with an accent: one character, or a letter and a combining one.
    world.accounts.users.add(
        OPERATOR_ACTS, "ann", new_password("caf\u00e9 caf\u00e9 caf\u00e9", CHEAP), "user", UserLimits()
    )
    assert world.log_in("ann", "cafe\u0301 cafe\u0301 cafe\u0301")


def test_keys_are_listed_expire_and_are_revoked(world: World) -> None:
    world.add("ann")
    session = world.log_in("ann")
    keys = world.accounts.api_keys
    laptop, ci = keys.add(session, "laptop", None), keys.add(session, "build machine", 7)
    assert {key.label for key in keys.all(ci.secret)} == {"laptop", "build machine"}
    assert ci.info.expires == ci.info.created + 7 * DAY_S
    keys.revoke(session, laptop.info.id)
    assert world.refusal(laptop.secret) == "invalid_api_key"
    world.clock.now_s += 7 * DAY_S
    assert world.refusal(ci.secret) == "invalid_api_key"


def test_a_user_has_a_bounded_number_of_keys(world: World) -> None:
    world.add("ann")
    session = world.log_in("ann")
    for _ in range(MOST_KEYS):
        world.accounts.api_keys.add(session, "", None)
    with pytest.raises(AccountsError, match="revoke one first"):
        world.accounts.api_keys.add(session, "", None)
    with pytest.raises(AccountsError, match="label has at most"):
        world.accounts.api_keys.add(session, "x" * 101, None)


def test_nobody_sees_or_revokes_anothers_keys(world: World) -> None:
    world.add("ann")
    world.add("bob", role="admin")
    ann, bob = world.log_in("ann"), world.log_in("bob")
    key = world.accounts.api_keys.add(ann, "laptop", None)
    assert world.accounts.api_keys.all(bob) == []
    with pytest.raises(AccountsError) as refused:
        world.accounts.api_keys.revoke(bob, key.info.id)
    assert refused.value.refusal.code == "not_found"
    assert world.refusal(key.secret) is None


def test_what_ends_a_credential_is_told_to_ingresses(world: World) -> None:
    ann = world.add("ann").info
    session = world.log_in("ann")
    key = world.accounts.api_keys.add(session, "", None)
    changes = world.accounts.store.changes
    start = changes.since("", 0)
    assert start.subjects is None  # another instance: nothing may stay cached
    instance, position = start.instance, start.position
    assert changes.since(instance, position).subjects == frozenset()
    world.accounts.api_keys.revoke(session, key.info.id)
    assert changes.since(instance, position).subjects == frozenset({key.info.id})
    world.accounts.logins.log_out(session, everywhere=False)
    assert len(changes.since(instance, position).subjects or ()) == 2
    position = changes.position
    world.accounts.users.change(OPERATOR_ACTS, "ann", UserChange(state="disabled"))
    assert changes.since(instance, position).subjects == frozenset({ann.id})
    assert changes.since(instance, changes.position + 1).subjects is None
    for number in range(10_001):
        changes.add(str(number))
    assert changes.since(instance, position).subjects is None  # too long ago
