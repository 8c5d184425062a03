from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, select, update

from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.store import Actor
from app.messages.accounts import AccountsError
from tests.app.accounts.world import World


def test_the_audit_tells_who_did_what(world: World) -> None:
    ann = world.add("ann").info
    session = world.log_in("ann")
    world.accounts.logins.note_failure(world.accounts.logins.challenge("ann"))
    world.accounts.logins.note_failure(world.accounts.logins.challenge("nobody"))
    world.accounts.logins.log_out(session, everywhere=True)
    page = world.accounts.audit(OPERATOR_ACTS, 0, 100)
    assert [(row.seq, row.actor, row.action, row.outcome) for row in page.rows] == [
        (1, "operator", "add_user", "ok"),
        (2, ann.id, "login", "ok"),
        (3, ann.id, "change_password", "first"),
        (4, ann.id, "logout", "ok"),
        (5, ann.id, "login", "ok"),
        (6, ann.id, "login", "refused"),
        (7, "unknown", "login", "refused"),
        (8, ann.id, "logout", "ok"),
    ]
    assert page.intact
    later = world.accounts.audit(OPERATOR_ACTS, 2, 1)
    assert ([row.seq for row in later.rows], later.intact) == ([3], True)
    with pytest.raises(AccountsError, match="administrators"):
        world.accounts.audit(Actor(ann.id, "user"), 0, 1)


CHANGES: dict[str, Callable[[Connection], object]] = {
    "a row": lambda on: on.execute(update(tables.audit).where(tables.audit.c.seq == 2).values(outcome="refused")),
    "a time": lambda on: on.execute(update(tables.audit).where(tables.audit.c.seq == 3).values(at=1)),
    "a row in the middle": lambda on: on.execute(delete(tables.audit).where(tables.audit.c.seq == 2)),
    "the last row": lambda on: on.execute(delete(tables.audit).where(tables.audit.c.seq == 3)),
    "all rows": lambda on: on.execute(delete(tables.audit)),
    "the head": lambda on: on.execute(delete(tables.meta).where(tables.meta.c.name == "audit_head")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed_and_stays_noticed(world: World, what: str) -> None:
    for name in ("ann", "bob", "cid"):
        world.add(name)
    assert world.accounts.audit(OPERATOR_ACTS, 0, 1).intact
    with world.accounts.store.transaction() as connection:
        CHANGES[what](connection)
    assert not world.accounts.audit(OPERATOR_ACTS, 0, 1).intact
    world.add("dan")
    assert not world.accounts.audit(OPERATOR_ACTS, 0, 1).intact


# --- addresses of logins

HERE, THERE = "192.0.2.7", "2001:db8::7"
DAY_S = 86_400


def logged_in(world: World) -> None:
    """Row 4 is a login without an address, 5 one with it, 6 a refused one with another."""
    world.add("ann")
    world.log_in("ann")
    world.log_in("ann", address=HERE)
    world.accounts.logins.note_failure(world.accounts.logins.challenge("nobody"), THERE)


def addresses(world: World) -> tuple[list[str | None], bool]:
    """The addresses of the last three rows, and whether the audit is intact."""
    page = world.accounts.audit(OPERATOR_ACTS, 4, 100)
    return [row.address for row in page.rows], page.intact


def change(world: World, seq: int, **values: object) -> None:
    with world.accounts.store.transaction() as connection:
        connection.execute(update(tables.audit).where(tables.audit.c.seq == seq).values(**values))


def cell(world: World, seq: int, column: str) -> bytes:
    with world.accounts.store.transaction() as connection:
        return bytes(connection.execute(select(tables.audit.c[column]).where(tables.audit.c.seq == seq)).scalar_one())


def test_a_login_has_its_address_whether_it_was_refused_or_not(world: World) -> None:
    logged_in(world)
    assert addresses(world) == ([None, HERE, THERE], True)
    assert HERE.encode() not in Path(world.settings.database).read_bytes(), "it is sealed"


@pytest.mark.parametrize("seq", [6, 7])
@pytest.mark.parametrize("taken", [["address_sealed"], ["address_digest"], ["address_sealed", "address_digest"]])
def test_an_address_that_was_taken_away_is_noticed(world: World, seq: int, taken: list[str]) -> None:
    logged_in(world)
    change(world, seq, **dict.fromkeys(taken))
    assert not addresses(world)[1]
    world.log_in("ann", address=HERE)
    assert not addresses(world)[1]


@pytest.mark.parametrize("added", [["address_sealed"], ["address_digest"], ["address_sealed", "address_digest"]])
@pytest.mark.parametrize("seq", [5, 7])
def test_an_address_that_was_added_or_replaced_is_noticed(world: World, seq: int, added: list[str]) -> None:
    """An address is replaced by another row's validly sealed one."""
    logged_in(world)
    change(world, seq, **{name: cell(world, 6, name) for name in added})
    shown, is_intact = addresses(world)
    assert not is_intact
    assert shown[seq - 5] in (None, THERE), "no row shows the address of another one"


def test_old_addresses_are_forgotten_and_the_audit_stays_whole(world: World) -> None:
    logged_in(world)
    world.clock.now_s += 89 * DAY_S
    world.log_in("ann", address=HERE)
    world.accounts.store.forget_addresses()
    assert addresses(world) == ([None, HERE, THERE, HERE], True)
    world.clock.now_s += 2 * DAY_S
    sealed = cell(world, 6, "address_sealed")
    world.accounts.store.forget_addresses()
    assert addresses(world) == ([None, None, None, HERE], True)
    assert sealed not in Path(world.settings.database).read_bytes()
    assert addresses(world)[1]
    world.reopen()
    world.log_in("ann", address=THERE)
    assert addresses(world) == ([None, None, None, HERE, THERE], True)
    change(world, 8, address_sealed=None)
    assert not addresses(world)[1], "that one was not old enough"


def test_who_has_the_database_cannot_have_addresses_forgotten_early(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither backdating a row nor moving the mark of deleted addresses goes unnoticed."""
    logged_in(world)
    for seq in range(1, 8):
        change(world, seq, at=1)
    world.accounts.store.forget_addresses()
    assert "the audit was changed" in caplog.text
    for seq in range(1, 8):
        change(world, seq, at=int(world.clock.now_s))
    assert addresses(world) == ([None, HERE, THERE], True)
    world.clock.now_s += 91 * DAY_S
    world.accounts.store.forget_addresses()
    world.log_in("ann", address=HERE)
    with world.accounts.store.transaction() as connection:
        mark = tables.meta.c.name == "audit_forgotten"
        value = connection.execute(select(tables.meta.c.value).where(mark)).scalar_one()
        forged = (9).to_bytes(8, "big") + value[8:]
        connection.execute(update(tables.meta).where(mark).values(value=forged))
    change(world, 8, address_sealed=None)
    assert not addresses(world)[1]


def test_addresses_need_not_be_kept_at_all(tmp_path: Path) -> None:
    world = World(str(tmp_path / "accounts.db"), audit_addresses_days=0)
    logged_in(world)
    assert addresses(world) == ([None, None, None], True)
    world.accounts.close()
