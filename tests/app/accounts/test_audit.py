from collections.abc import Callable

import pytest
from sqlalchemy import Connection, delete, update

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
