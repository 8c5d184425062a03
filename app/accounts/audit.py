"""The audit log: who did what, without content. A chain of MACs under the server's key makes changes evident.

A row holds the MAC of the rows before it. `meta` holds the number of rows and the MAC of the last one, under a MAC of
its own. Restoring an old copy of the whole database is not detected.

A login's row has the client's address, sealed; the chain covers only a digest of the sealed value. So old addresses can
be deleted without breaking the chain; `meta` says, under a MAC, up to which row. A row without an address has the same
MAC as before addresses existed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import orjson
from sqlalchemy import Connection, func, select, update

from app.accounts import tables
from app.accounts.database import read_meta, write_meta
from app.accounts.keys import derive, mac
from app.messages.accounts import AuditPage, AuditRow
from app.sealing.records import SealError, seal, unseal

_HEAD, _FORGOTTEN = "audit_head", "audit_forgotten"
_MAC_BYTES = 32
_START = bytes(_MAC_BYTES)


class Audit:
    """Appends rows and verifies the chain."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._address_key = derive(key, "addresses")

    def note(
        self,
        connection: Connection,
        at_s: float,
        actor: str,
        action: str,
        target: str,
        outcome: str = "ok",
        address: str | None = None,
    ) -> None:
        """Appends a row within the transaction that it describes."""
        head = self._head(connection)
        if head is None:  # no rows yet, or the head was tampered with: then the chain is visibly broken here
            head = (connection.execute(select(func.max(tables.audit.c.seq))).scalar() or 0, _START)
        seq, previous = head
        row = AuditRow(seq + 1, int(at_s), actor, action, target, outcome)
        sealed = None if address is None else seal(self._address_key, address.encode(), _context(row.seq))
        digest = None if sealed is None else _digest(sealed)
        connection.execute(
            tables.audit.insert().values(
                seq=row.seq,
                at=row.at,
                actor=actor,
                action=action,
                object=target,
                outcome=outcome,
                address_sealed=sealed,
                address_digest=digest,
                previous_mac=previous,
            )
        )
        write_meta(connection, _HEAD, self._sealed_head(row.seq, self._mac(row, digest, previous)))

    def rows_after(self, connection: Connection, after: int, limit: int) -> AuditPage:
        """Returns at most `limit` rows after `after`, and whether the whole chain is intact."""
        shown = connection.execute(
            select(tables.audit).where(tables.audit.c.seq > after).order_by(tables.audit.c.seq).limit(limit)
        )
        rows: Sequence[AuditRow] = [_row(each, self._address(each)) for each in shown]
        last = connection.execute(select(func.max(tables.audit.c.seq))).scalar() or 0
        return AuditPage(rows, self._is_intact(connection), last)

    def forget_addresses(self, connection: Connection, before_s: float) -> bool:
        """Deletes the addresses of rows older than `before_s`. Returns False, and deletes none, if the chain is broken.

        Otherwise an attacker who backdates a row would get its address deleted, and the tampering would not show.
        """
        seq, at = tables.audit.c.seq, tables.audit.c.at
        newer = connection.execute(select(func.min(seq)).where(at >= before_s)).scalar()
        last = (connection.execute(select(func.max(seq))).scalar() or 0) if newer is None else newer - 1
        old = (seq <= last) & tables.audit.c.address_sealed.is_not(None)
        if connection.execute(select(func.count()).select_from(tables.audit).where(old)).scalar_one() == 0:
            return True
        if not self._is_intact(connection):
            return False
        connection.execute(update(tables.audit).where(old).values(address_sealed=None))
        write_meta(connection, _FORGOTTEN, self._sealed_forgotten(last))
        return True

    def _is_intact(self, connection: Connection) -> bool:
        previous, seq, forgotten = _START, 0, self._forgotten(connection)
        for each in connection.execute(select(tables.audit).order_by(tables.audit.c.seq)):
            if each.seq != seq + 1 or each.previous_mac != previous or not _has_its_address(each, forgotten):
                return False
            previous, seq = self._mac(_row(each), each.address_digest, previous), each.seq
        return self._head(connection) == ((seq, previous) if seq else None)

    def _mac(self, row: AuditRow, digest: bytes | None, previous: bytes) -> bytes:
        """digest: SHA-256 of the sealed address; None if the row was written without an address."""
        *told, _ = astuple(row)
        return mac(self._key, previous + orjson.dumps(told if digest is None else [*told, digest.hex()]))

    def _address(self, row: Any) -> str | None:
        try:
            sealed = row.address_sealed
            return None if sealed is None else unseal(self._address_key, sealed, _context(row.seq)).decode()
        except SealError:  # the chain check reports this as tampering
            return None

    def _sealed_forgotten(self, seq: int) -> bytes:
        last = seq.to_bytes(8, "big")
        return last + mac(self._key, b"forgotten" + last)

    def _forgotten(self, connection: Connection) -> int:
        """Returns the number of the last row whose address may have been deleted."""
        sealed = read_meta(connection, _FORGOTTEN) or b""
        seq = int.from_bytes(sealed[:8], "big")
        return seq if self._sealed_forgotten(seq) == sealed else 0

    def _sealed_head(self, seq: int, last: bytes) -> bytes:
        head = seq.to_bytes(8, "big") + last
        return head + mac(self._key, b"head" + head)

    def _head(self, connection: Connection) -> tuple[int, bytes] | None:
        """Returns the number of rows and the last one's MAC; None if there are no rows or the head's MAC is wrong."""
        sealed = read_meta(connection, _HEAD)
        if sealed is None:
            return None
        seq, last = int.from_bytes(sealed[:8], "big"), sealed[8 : 8 + _MAC_BYTES]
        return (seq, last) if self._sealed_head(seq, last) == sealed else None


def _row(row: Any, address: str | None = None) -> AuditRow:
    return AuditRow(row.seq, row.at, row.actor, row.action, row.object, row.outcome, address)


def _has_its_address(row: Any, forgotten: int) -> bool:
    if row.address_sealed is None:
        return row.address_digest is None or row.seq <= forgotten
    return bool(_digest(row.address_sealed) == row.address_digest)


def _digest(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).digest()


def _context(seq: int) -> str:
    return f"address of row {seq}"
