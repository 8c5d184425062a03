import pytest

from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.store import Actor
from app.messages.accounts import AccountsError, UsageCounts, UsageRow, UserUsage
from tests.app.accounts.world import World

TODAY, TOMORROW = "2027-01-15", "2027-01-16"


def row(user: str, prompt: int, output: int, *, credential: str = "c", day: str = "", model: str = "m") -> UsageRow:
    return UsageRow(user, credential, day, model, 1, prompt, min(prompt, 5), output)


def test_usage_adds_up_over_writes_and_restarts(world: World) -> None:
    usage = world.accounts.usage
    usage.add(row("ann", 10, 1))
    assert usage.tokens_today("ann") == 11
    usage.add(row("ann", 20, 2))
    usage.write()
    usage.add(row("ann", 30, 3))
    usage.add(row("ann", 7, 0, model="other"))
    assert usage.tokens_today("ann") == 73
    assert usage.tokens_today("bob") == 0
    usage = world.reopen().usage
    assert usage.tokens_today("ann") == 73
    assert usage.rows(OPERATOR_ACTS, TODAY, TODAY) == [
        UsageRow("ann", "c", TODAY, "m", 3, 60, 15, 6),
        UsageRow("ann", "c", TODAY, "other", 1, 7, 5, 0),
    ]


def test_a_day_ends_at_midnight_in_utc(world: World) -> None:
    usage = world.accounts.usage
    usage.add(row("ann", 10, 1))
    assert usage.tokens_today("ann") == 11
    world.clock.now_s += 86_400 - world.clock.now_s % 86_400
    assert usage.tokens_today("ann") == 0
    usage.add(row("ann", 1, 1, day=TODAY))  # the accounts set the day, not the ingress
    assert usage.tokens_today("ann") == 2
    assert [each.day for each in usage.rows(OPERATOR_ACTS, TODAY, TOMORROW)] == [TODAY, TOMORROW]
    assert [each.day for each in usage.rows(OPERATOR_ACTS, TOMORROW, "2028-01-01")] == [TOMORROW]


def test_what_each_user_took_in_1_7_and_30_days(world: World) -> None:
    usage, day_s = world.accounts.usage, 86_400
    for days_ago, prompt in ((30, 1000), (29, 200), (7, 80), (6, 40), (1, 20), (0, 8)):
        world.clock.now_s -= days_ago * day_s
        usage.add(row("ann", prompt, 1))
        world.clock.now_s += days_ago * day_s
    world.clock.now_s -= 29 * day_s
    usage.add(row("bob", 3, 1))
    world.clock.now_s += 29 * day_s
    usage.add(row("ann", 100, 2, credential="another", model="other"))
    none = UsageCounts(0, 0, 0, 0)
    assert usage.by_user(OPERATOR_ACTS) == [
        UserUsage(
            "ann",
            today=UsageCounts(2, 108, 10, 3),
            days_7=UsageCounts(4, 168, 20, 5),
            days_30=UsageCounts(6, 448, 30, 7),
        ),
        UserUsage("bob", none, none, UsageCounts(1, 3, 3, 1)),
    ]


def test_usage_is_for_administrators(world: World) -> None:
    with pytest.raises(AccountsError, match="administrators"):
        world.accounts.usage.rows(Actor("ann", "user"), TODAY, TODAY)
    with pytest.raises(AccountsError, match="administrators"):
        world.accounts.usage.by_user(Actor("ann", "user"))
