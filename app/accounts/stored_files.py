"""Users' files, for the user of a credential. Parts arrive sealed and are not opened here.

A file is found once it is complete. A deleted one is hidden at once, and its parts go in small steps, because a
database that overwrites what it deletes would keep everybody else waiting.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, tuple_, update

from app.accounts import tables
from app.accounts.deleted_rows import hide_files
from app.accounts.logins import Authenticated, Logins
from app.accounts.store import Store
from app.accounts.stored_conversations import check_id, known_id
from app.messages.accounts import AccountsError
from app.messages.batches import (
    DOCUMENT_PURPOSES,
    OPEN_STATES,
    PART_BYTES,
    FilePart,
    FilePurpose,
    StoredFile,
    UploadPurpose,
)

MOST_FILES = 10_000
"""The limit of files per user."""
_DAY_S = 86_400
_FOR_EVER_S = 100 * 365 * _DAY_S
_UPLOAD_S = 6 * 3600
"""How long an upload may take; later its parts are refused and deleted."""
_DELETED_AT_ONCE = 16
_MOST_SMALL = 4096
"""The most parts in one answer: results of a line each may be small."""
_US = 1_000_000


class StoredFiles:
    """Implements the files of `app.messages.batches.BatchStore`; every method raises AccountsError."""

    def __init__(self, store: Store, logins: Logins) -> None:
        self._store = store
        self._logins = logins

    def new(self, secret: str, file_id: str) -> None:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            files = tables.files.c
            mine = (files.user_id == known.identity.user_id) & (files.state != "deleted")
            count = connection.execute(select(func.count()).select_from(tables.files).where(mine)).scalar_one()
            if count >= MOST_FILES:
                raise AccountsError("insufficient_quota", f"There are {MOST_FILES} files already: delete one first.")
            self.check_room(connection, known, 1)
            self.insert(connection, known, file_id, "batch")

    def insert(self, connection: Connection, known: Authenticated, file_id: str, purpose: FilePurpose) -> None:
        """Adds an unfinished file; once more, the same one."""
        check_id(file_id)
        found = connection.execute(select(tables.files.c.user_id).where(tables.files.c.id == file_id)).one_or_none()
        if found is not None and found.user_id == known.identity.user_id:
            return
        if found is not None:
            raise AccountsError("conflict", "There is a file of that id already.")
        now_s = self._store.now()
        connection.execute(
            insert(tables.files).values(
                id=file_id,
                user_id=known.identity.user_id,
                purpose=purpose,
                state="open",
                created_us=int(now_s * _US),
                expires=int(now_s) + _UPLOAD_S,
                parts=0,
                bytes=0,
            )
        )

    def add_part(self, secret: str, file_id: str, part: FilePart) -> None:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self._row(connection, known, file_id, "open")
            parts = tables.file_parts.c
            there = select(parts.seq).where(parts.file_id == row.id, parts.seq == part.seq)
            if row.purpose == "batch_output":  # the results of a batch are added with its claim
                raise _no_such_file()
            if connection.execute(there).first() is None:
                self.check_room(connection, known, len(part.sealed))
                self.append(connection, row.id, [part])

    @staticmethod
    def append(connection: Connection, file_id: str, parts: Sequence[FilePart]) -> None:
        """Adds new parts of a file."""
        values = [{"file_id": file_id, "seq": part.seq, "sealed": part.sealed} for part in parts]
        connection.execute(insert(tables.file_parts), values)
        files = tables.files.c
        more = {"parts": files.parts + len(parts), "bytes": files.bytes + sum(len(part.sealed) for part in parts)}
        connection.execute(update(tables.files).where(files.id == file_id).values(**more))

    def finish(
        self, secret: str, file_id: str, sealed: bytes, seconds: int | None, purpose: UploadPurpose = "batch"
    ) -> StoredFile:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self._row(connection, known, file_id)
            if row.state == "open":
                files = tables.files.c  # its purpose may come after its content
                connection.execute(update(tables.files).where(files.id == row.id).values(purpose=purpose))
                kept_s = _FOR_EVER_S if purpose in DOCUMENT_PURPOSES and seconds is None else seconds
                self.complete(connection, row.id, sealed, kept_s)
            return _file(self._row(connection, known, file_id))

    def complete(self, connection: Connection, file_id: str, sealed: bytes, seconds: int | None) -> bool:
        """Lets a file be found from now on, if it has parts or was uploaded; else deletes it. Returns which."""
        files, now_s = tables.files.c, self._store.now()
        kept = (files.id == file_id) & ((files.parts > 0) | (files.purpose != "batch_output"))
        kept_s = self._store.settings.batches.days * _DAY_S if seconds is None else seconds
        values: dict[str, Any] = {"state": "ready", "sealed": sealed, "expires": int(now_s) + kept_s}
        changed = connection.execute(
            update(tables.files).where(kept).values(created_us=int(now_s * _US), **values)
        ).rowcount
        if not changed:
            connection.execute(delete(tables.files).where(files.id == file_id))
        return bool(changed)

    def listed(
        self, secret: str, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredFile]:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            files = tables.files.c
            asked = select(tables.files).where(files.user_id == known.identity.user_id, files.state == "ready")
            if purpose is not None:
                asked = asked.where(files.purpose == purpose)
            place = tuple_(files.created_us, files.id)
            if after is not None:
                row = self._row(connection, known, after, "ready", param="after")
                last = tuple_(row.created_us, row.id)
                asked = asked.where(place < last if newest_first else place > last)
            order = (files.created_us.desc(), files.id.desc()) if newest_first else (files.created_us, files.id)
            return [_file(row) for row in connection.execute(asked.order_by(*order).limit(max(0, limit)))]

    def get(self, secret: str, file_id: str) -> StoredFile:
        with self._store.transaction() as connection:
            return _file(self._row(connection, self._logins.authenticate(connection, secret), file_id, "ready"))

    def parts(self, secret: str, file_id: str, after: int) -> Sequence[FilePart]:
        """Returns at least the next part, and as many more as fit into `PART_BYTES`."""
        with self._store.transaction() as connection:
            row = self._row(connection, self._logins.authenticate(connection, secret), file_id, "ready")
            parts = tables.file_parts.c
            sizes = select(parts.seq, func.length(parts.sealed).label("size"))
            sizes = sizes.where(parts.file_id == row.id, parts.seq > after).order_by(parts.seq).limit(_MOST_SMALL)
            last, taken = None, 0
            for each in connection.execute(sizes):
                if last is not None and taken + each.size > PART_BYTES:
                    break
                last, taken = each.seq, taken + each.size
            if last is None:
                return []
            found = select(tables.file_parts).where(parts.file_id == row.id, parts.seq > after, parts.seq <= last)
            return [FilePart(each.seq, each.sealed) for each in connection.execute(found.order_by(parts.seq))]

    def delete(self, secret: str, file_id: str) -> None:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self._row(connection, known, file_id)
            batches = tables.batches.c
            reading = (batches.input_id == row.id) & batches.state.in_(OPEN_STATES)
            if row.purpose == "batch_output" and row.state != "ready":
                raise _no_such_file()
            if connection.execute(select(batches.id).where(reading).limit(1)).first() is not None:
                raise AccountsError("conflict", "A batch reads this file: cancel the batch first, or wait for its end.")
            hide_files(connection, tables.files.c.id == row.id)

    def delete_old(self) -> None:
        """Hides the files of all users whose time is over, but for those of batches that have not ended."""
        files, batches = tables.files.c, tables.batches.c
        reading = select(batches.input_id).where(batches.state.in_(OPEN_STATES))
        over = (files.expires <= int(self._store.now())) & (files.state != "deleted") & files.id.not_in(reading)
        with self._store.transaction() as connection:
            hide_files(connection, over & ~((files.state == "open") & (files.purpose == "batch_output")))

    def destroy_some(self) -> bool:
        """Destroys some parts of hidden files of all users; returns whether there may be more."""
        files, parts = tables.files.c, tables.file_parts.c
        with self._store.transaction() as connection:
            gone = connection.execute(select(files.id).where(files.state == "deleted").limit(1)).one_or_none()
            if gone is None:
                return False
            some = select(parts.seq).where(parts.file_id == gone.id).limit(_DELETED_AT_ONCE)
            numbers = connection.execute(some).scalars().all()
            connection.execute(delete(tables.file_parts).where(parts.file_id == gone.id, parts.seq.in_(numbers)))
            if len(numbers) < _DELETED_AT_ONCE:
                connection.execute(delete(tables.files).where(files.id == gone.id))
        return True

    def stored_bytes(self, connection: Connection, user_id: str) -> int:
        """Returns the size of all files and collections of a user."""
        used = 0
        for table in (tables.files, tables.collections):
            mine = (table.c.user_id == user_id) & (table.c.state != "deleted")
            taken = select(func.coalesce(func.sum(table.c.bytes), 0)).where(mine)
            used += int(connection.execute(taken).scalar_one())
        return used

    def check_room(self, connection: Connection, known: Authenticated, more_bytes: int) -> None:
        """Raises AccountsError `insufficient_quota` if `more_bytes` exceed what the user's files may take."""
        most = self._store.settings.batches.bytes_per_user
        used = self.stored_bytes(connection, known.identity.user_id)
        if used + more_bytes > most:
            message = f"Your files take {used} of {most} bytes, too many for {more_bytes} more: delete some."
            raise AccountsError("insufficient_quota", message)

    @staticmethod
    def _row(
        connection: Connection, known: Authenticated, file_id: str, state: str | None = None, param: str | None = None
    ) -> Row[Any]:
        """state: find only files in this one; None: all but deleted ones."""
        files = tables.files.c
        mine = (files.user_id == known.identity.user_id) & (files.id == known_id(file_id))
        mine &= files.state != "deleted" if state is None else files.state == state
        row = connection.execute(select(tables.files).where(mine)).one_or_none()
        if row is None:
            raise _no_such_file(param)
        return row


def _file(row: Row[Any]) -> StoredFile:
    created = row.created_us // _US
    expires = None if row.expires - created >= _FOR_EVER_S else row.expires
    return StoredFile(row.id, row.purpose, created, expires, row.parts, row.bytes, row.sealed)


def _no_such_file(param: str | None = None) -> AccountsError:
    return AccountsError("not_found", "There is no such file.", param=param)
