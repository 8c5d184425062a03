"""The audit: who did what, without content, chained by MACs so that nobody without the server's key can change it.

A row holds the MAC of the rows before it; the last one's is kept with the number of rows in `meta`, with a MAC of its
own. An old copy of the whole database can't be told from the new one by this.
"""

from collections.abc import Sequence
from dataclasses import astuple

import orjson
from sqlalchemy import Connection, Row, func, select

from app.accounts import tables
from app.accounts.database import read_meta, write_meta
from app.accounts.keys import mac
from app.messages.accounts import AuditPage, AuditRow

_HEAD = "audit_head"
_MAC_BYTES = 32
_START = bytes(_MAC_BYTES)


class Audit:
    """Notes rows and checks them."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def note(
        self, connection: Connection, at_s: float, actor: str, action: str, target: str, outcome: str = "ok"
    ) -> None:
        """Adds a row, in the transaction that it tells of."""
        head = self._head(connection)
        if head is None:  # none yet, or somebody has changed it: then the chain shows it from here on
            head = (connection.execute(select(func.max(tables.audit.c.seq))).scalar() or 0, _START)
        seq, previous = head
        row = AuditRow(seq + 1, int(at_s), actor, action, target, outcome)
        connection.execute(
            tables.audit.insert().values(
                seq=row.seq,
                at=row.at,
                actor=actor,
                action=action,
                object=target,
                outcome=outcome,
                previous_mac=previous,
            )
        )
        write_meta(connection, _HEAD, self._sealed_head(row.seq, self._mac(row, previous)))

    def page(self, connection: Connection, after: int, limit: int) -> AuditPage:
        """At most `limit` rows from the one after `after`; checks all there are."""
        shown = connection.execute(
            select(tables.audit).where(tables.audit.c.seq > after).order_by(tables.audit.c.seq).limit(limit)
        )
        rows: Sequence[AuditRow] = [_row(each) for each in shown]
        last = connection.execute(select(func.max(tables.audit.c.seq))).scalar() or 0
        return AuditPage(rows, self._is_intact(connection), last)

    def _is_intact(self, connection: Connection) -> bool:
        previous, seq = _START, 0
        for each in connection.execute(select(tables.audit).order_by(tables.audit.c.seq)):
            row = _row(each)
            if row.seq != seq + 1 or each.previous_mac != previous:
                return False
            previous, seq = self._mac(row, previous), row.seq
        return self._head(connection) == ((seq, previous) if seq else None)

    def _mac(self, row: AuditRow, previous: bytes) -> bytes:
        return mac(self._key, previous + orjson.dumps(astuple(row)))

    def _sealed_head(self, seq: int, last: bytes) -> bytes:
        head = seq.to_bytes(8, "big") + last
        return head + mac(self._key, b"head" + head)

    def _head(self, connection: Connection) -> tuple[int, bytes] | None:
        """The number of rows and the last one's MAC; None if none was ever noted, or the head is not ours."""
        sealed = read_meta(connection, _HEAD)
        if sealed is None:
            return None
        seq, last = int.from_bytes(sealed[:8], "big"), sealed[8 : 8 + _MAC_BYTES]
        return (seq, last) if self._sealed_head(seq, last) == sealed else None


def _row(row: Row[tuple[int, int, str, str, str, str, bytes]]) -> AuditRow:
    return AuditRow(row.seq, row.at, row.actor, row.action, row.object, row.outcome)
