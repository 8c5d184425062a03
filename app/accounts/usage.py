"""Token usage: counted in memory, written every few seconds. Knows no limit."""

import datetime
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import case, func, insert, select, update

from app.accounts import tables
from app.accounts.store import Actor, Store
from app.accounts.users import check_admin
from app.messages.accounts import UsageCounts, UsageRow, UserUsage

_S_PER_DAY = 86400.0
_Key = tuple[str, str, str, str]


class Usage:
    """Sums up usage. Counts that are not written yet, of some seconds, are lost with the process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unwritten: dict[_Key, UsageRow] = {}
        self._today: dict[str, int] = {}
        """Today's tokens of each user, loaded on demand."""
        self._day = ""

    def today(self) -> str:
        """Returns the day in UTC."""
        return _day(self._store.now())

    def add(self, row: UsageRow) -> None:
        """Counts the row for today, whatever its day."""
        row = replace(row, day=self.today())
        key = (row.user_id, row.credential, row.day, row.model)
        self._unwritten[key] = row if (before := self._unwritten.get(key)) is None else _sum(before, row)
        if row.day == self._day and row.user_id in self._today:
            self._today[row.user_id] += row.prompt + row.output

    def tokens_today(self, user_id: str) -> int:
        """Returns prompt and output tokens."""
        day = self.today()
        if day != self._day:
            self._day, self._today = day, {}
        if user_id not in self._today:
            columns = tables.usage.c
            counted = select(func.coalesce(func.sum(columns.prompt + columns.output), 0))
            with self._store.transaction() as connection:
                written = connection.execute(counted.where(columns.user_id == user_id, columns.day == day)).scalar_one()
            waiting = [row for row in self._unwritten.values() if row.user_id == user_id and row.day == day]
            self._today[user_id] = int(written) + sum(row.prompt + row.output for row in waiting)
        return self._today[user_id]

    def write(self) -> None:
        if not self._unwritten:
            return
        counts = tables.usage.c
        with self._store.transaction() as connection:
            for key, row in self._unwritten.items():
                where = [column == value for column, value in zip(tables.usage.primary_key, key, strict=True)]
                taken = {"requests": row.requests, "prompt": row.prompt, "cached": row.cached, "output": row.output}
                more = {name: counts[name] + value for name, value in taken.items()}
                if not connection.execute(update(tables.usage).where(*where).values(more)).rowcount:
                    names = ("user_id", "credential_id", "day", "model")
                    connection.execute(insert(tables.usage).values(**dict(zip(names, key, strict=True)), **taken))
        self._unwritten.clear()

    def rows(self, actor: Actor, first_day: str, last_day: str) -> Sequence[UsageRow]:
        """Returns all users' rows, both days included. Raises AccountsError `admin_only`."""
        check_admin(actor)
        self.write()
        columns = tables.usage.c
        order = (columns.day, columns.user_id, columns.credential_id, columns.model)
        asked = select(tables.usage).where(columns.day.between(first_day, last_day)).order_by(*order)
        with self._store.transaction() as connection:
            return [UsageRow(*row) for row in connection.execute(asked)]

    def by_user(self, actor: Actor) -> Sequence[UserUsage]:
        """Returns the usage of each user active in the last 30 days, by id. Raises AccountsError `admin_only`."""
        check_admin(actor)
        self.write()
        now_s, columns = self._store.now(), tables.usage.c
        first_days = [_day(now_s - (days - 1) * _S_PER_DAY) for days in (1, 7, 30)]
        sums = [
            func.sum(case((columns.day >= first, count), else_=0))
            for first in first_days
            for count in (columns.requests, columns.prompt, columns.cached, columns.output)
        ]
        asked = select(columns.user_id, *sums).where(columns.day >= first_days[-1])
        asked = asked.group_by(columns.user_id).order_by(columns.user_id)
        with self._store.transaction() as connection:
            return [_user_usage(*row) for row in connection.execute(asked)]


def _day(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).date().isoformat()


def _user_usage(user_id: str, *sums: int) -> UserUsage:
    """sums: four a period; Postgres returns decimals."""
    counts = [int(value) for value in sums]
    return UserUsage(user_id, *(UsageCounts(*counts[first : first + 4]) for first in (0, 4, 8)))


def _sum(one: UsageRow, other: UsageRow) -> UsageRow:
    return replace(
        one,
        requests=one.requests + other.requests,
        prompt=one.prompt + other.prompt,
        cached=one.cached + other.cached,
        output=one.output + other.output,
    )
