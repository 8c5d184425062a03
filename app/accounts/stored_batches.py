"""Users' batches: which there are, which ingress has which, and what came of their lines. Opens no text.

One ingress has a batch at a time: it claims the batch for some seconds and says again and again that it goes on. Each
claim has a number, and what comes with an older number is refused, so that a line has one result whoever ran it. The
results are parts of two files, which are found once the batch has ended.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from sqlalchemy import Connection, Row, delete, func, insert, or_, select, tuple_, update

from app.accounts import tables
from app.accounts.batch_secrets import BatchSecrets
from app.accounts.deleted_rows import hide_files
from app.accounts.kept_secrets import KeptSecrets
from app.accounts.logins import Authenticated, Logins
from app.accounts.store import Store
from app.accounts.stored_conversations import check_id, known_id
from app.accounts.stored_files import StoredFiles
from app.messages.accounts import AccountsError
from app.messages.batches import (
    LAST_SEQ,
    LEASE_S,
    OPEN_STATES,
    BatchState,
    ClaimedBatch,
    FilePart,
    LineResult,
    NewBatch,
    StoredBatch,
)

MOST_BATCHES = 10_000
"""The limit of batches per user, ended ones included."""
_LINES_AT_ONCE = 20_000
_DAY_S = 86_400
_US = 1_000_000


class StoredBatches:
    """Implements the batches of `app.messages.batches.BatchStore`; every method raises AccountsError."""

    def __init__(self, store: Store, logins: Logins, files: StoredFiles, kept: KeptSecrets) -> None:
        self._store = store
        self._logins = logins
        self._files = files
        self.secrets = BatchSecrets(kept.write)
        before = kept.read()
        self._expect_open()
        self.secrets.take_over(before)

    # --- the user's

    def new(self, secret: str, batch: NewBatch) -> StoredBatch:
        settings = self._store.settings.batches
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            user_id, batches, files = known.identity.user_id, tables.batches.c, tables.files.c
            check_id(batch.id)
            there = connection.execute(select(batches.user_id).where(batches.id == batch.id)).one_or_none()
            if there is not None and there.user_id == user_id:
                return self._batch(connection, self._row(connection, known, batch.id))
            if there is not None:
                raise AccountsError("conflict", "There is a batch of that id already.")
            readable = (files.id == known_id(batch.input_id)) & (files.user_id == user_id) & (files.state == "ready")
            found = connection.execute(select(files.purpose).where(readable)).one_or_none()
            if found is None:
                raise AccountsError("not_found", "There is no such file.", param="input_file_id")
            if found.purpose != "batch":
                raise AccountsError("invalid_value", "That file is not for a batch.", param="input_file_id")
            counted = select(func.count()).select_from(tables.batches).where(batches.user_id == user_id)
            running = connection.execute(counted.where(batches.state.in_(OPEN_STATES))).scalar_one()
            if running >= settings.batches_per_user:
                message = f"{running} of your batches have not ended, and there may be no more."
                raise AccountsError("insufficient_quota", message)
            if connection.execute(counted).scalar_one() >= MOST_BATCHES:
                raise AccountsError("insufficient_quota", f"There are {MOST_BATCHES} batches already.")
            self._files.check_room(connection, known, 1)
            for file_id in (batch.output_id, batch.error_id):
                self._files.insert(connection, known, file_id, "batch_output")
            now_s = self._store.now()
            connection.execute(
                insert(tables.batches).values(
                    id=batch.id,
                    user_id=user_id,
                    state="validating",
                    created_us=int(now_s * _US),
                    expires=int(now_s) + settings.hours * 3600,
                    input_id=batch.input_id,
                    output_id=batch.output_id,
                    error_id=batch.error_id,
                    output_seconds=batch.output_seconds,
                    total=0,
                    completed=0,
                    failed=0,
                    times="{}",
                    claim=0,
                    leased_until=0,
                    sealed=batch.sealed,
                )
            )
            made = self._batch(connection, self._row(connection, known, batch.id))
        self.secrets.begin(user_id)
        self.secrets.see(user_id, secret)
        return made

    def listed(self, secret: str, after: str | None, limit: int) -> Sequence[StoredBatch]:
        """Returns batches, newest first."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            batches = tables.batches.c
            asked = select(tables.batches).where(batches.user_id == known.identity.user_id)
            if after is not None:
                row = self._row(connection, known, after, param="after")
                asked = asked.where(tuple_(batches.created_us, batches.id) < tuple_(row.created_us, row.id))
            asked = asked.order_by(batches.created_us.desc(), batches.id.desc()).limit(max(0, limit))
            return [self._batch(connection, row) for row in connection.execute(asked).all()]

    def get(self, secret: str, batch_id: str) -> StoredBatch:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            found = self._batch(connection, self._row(connection, known, batch_id))
        self.secrets.see(known.identity.user_id, secret)
        return found

    def cancel(self, secret: str, batch_id: str) -> StoredBatch:
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row = self._row(connection, known, batch_id)
            if row.state in ("validating", "in_progress"):
                row = self._changed(connection, row, "cancelling")
            elif row.state not in ("cancelling", "cancelled"):
                raise AccountsError("conflict", f"The batch is {row.state}: there is nothing to cancel.")
            found = self._batch(connection, row)
        self.secrets.see(known.identity.user_id, secret)
        return found

    # --- the ingress'

    def claim(self, most: int) -> Sequence[ClaimedBatch]:
        users = self.secrets.users()
        if not users:
            return []
        batches, now_s = tables.batches.c, int(self._store.now())
        free = or_(batches.leased_until <= now_s, batches.leased_until > now_s + LEASE_S)  # the clock was set back
        claimed: list[ClaimedBatch] = []
        with self._store.transaction() as connection:
            asked = select(tables.batches).where(batches.state.in_(OPEN_STATES), batches.user_id.in_(users), free)
            for row in connection.execute(asked.order_by(batches.created_us)).all():
                secret = self._valid_secret(connection, row.user_id)
                if secret is None:
                    continue
                row = self._changed(connection, row, claim=row.claim + 1, leased_until=now_s + LEASE_S)
                claimed.append(ClaimedBatch(self._batch(connection, row), row.claim, secret))
                if len(claimed) >= most:
                    break
        return claimed

    def give_back(self, claimed: Sequence[ClaimedBatch]) -> None:
        """Ends leases of which no ingress has learned."""
        for one in claimed:
            with suppress(AccountsError):
                self.leave(one.secret, one.batch.id, one.claim)

    def keep(self, secret: str, batch_id: str, claim: int) -> StoredBatch:
        with self._store.transaction() as connection:
            known, row = self._claimed(connection, secret, batch_id, claim)
            kept = self._batch(connection, self._prolonged(connection, row))
        self.secrets.see(known.identity.user_id, secret)
        return kept

    def leave(self, secret: str, batch_id: str, claim: int) -> None:
        with self._store.transaction() as connection:
            _, row = self._claimed(connection, secret, batch_id, claim)
            self._changed(connection, row, leased_until=0)

    def start(self, secret: str, batch_id: str, claim: int, total: int, sealed: bytes) -> StoredBatch:
        with self._store.transaction() as connection:
            _, row = self._claimed(connection, secret, batch_id, claim)
            if row.state == "validating":
                row = self._changed(connection, row, "in_progress", total=total, sealed=sealed)
            return self._batch(connection, row)

    def done_lines(self, secret: str, batch_id: str, after: int) -> Sequence[int]:
        with self._store.transaction() as connection:
            row = self._row(connection, self._logins.authenticate(connection, secret), batch_id)
            parts = tables.file_parts.c
            of_lines = parts.file_id.in_((row.output_id, row.error_id)) & (parts.seq > after) & (parts.seq < LAST_SEQ)
            return (
                connection.execute(select(parts.seq).where(of_lines).order_by(parts.seq).limit(_LINES_AT_ONCE))
                .scalars()
                .all()
            )

    def add_results(self, secret: str, batch_id: str, claim: int, results: Sequence[LineResult]) -> StoredBatch:
        with self._store.transaction() as connection:
            known, row = self._claimed(connection, secret, batch_id, claim)
            parts = tables.file_parts.c
            numbers = [result.seq for result in results]
            same = parts.file_id.in_((row.output_id, row.error_id)) & parts.seq.in_(numbers)
            there = set(connection.execute(select(parts.seq).where(same)).scalars())
            new = [result for result in results if result.seq not in there]
            of_lines = [result for result in new if result.seq < LAST_SEQ]
            if of_lines:
                self._files.check_room(connection, known, sum(len(result.sealed) for result in of_lines))
            for file_id, is_error in ((row.output_id, False), (row.error_id, True)):
                added = [FilePart(result.seq, result.sealed) for result in new if result.is_error == is_error]
                if added:
                    self._files.append(connection, file_id, added)
            failed = sum(result.is_error for result in of_lines)
            counts = {"completed": row.completed + len(of_lines) - failed, "failed": row.failed + failed}
            return self._batch(connection, self._prolonged(connection, row, **counts))

    def finalize(self, secret: str, batch_id: str, claim: int) -> StoredBatch:
        with self._store.transaction() as connection:
            _, row = self._claimed(connection, secret, batch_id, claim)
            parts = tables.file_parts.c
            late = (parts.file_id == row.error_id) & (parts.seq >= LAST_SEQ)
            sums = select(func.count(), func.coalesce(func.sum(func.length(parts.sealed)), 0)).where(late)
            count, size = connection.execute(sums).one()
            if count:  # whoever had the batch before was lost at its end
                connection.execute(delete(tables.file_parts).where(late))
                files = tables.files.c
                less = {"parts": files.parts - count, "bytes": files.bytes - int(size)}
                connection.execute(update(tables.files).where(files.id == row.error_id).values(**less))
            if row.state == "in_progress":
                row = self._changed(connection, row, "finalizing")
            return self._batch(connection, row)

    def end(
        self, secret: str, batch_id: str, claim: int, state: BatchState, sealed: bytes, names: tuple[bytes, bytes]
    ) -> StoredBatch:
        with self._store.transaction() as connection:
            known, row = self._claimed(connection, secret, batch_id, claim)
            for file_id, name in zip((row.output_id, row.error_id), names, strict=True):
                self._files.complete(connection, file_id, name, row.output_seconds)
            row = self._changed(connection, row, state, sealed=sealed, leased_until=0)
            batches, user_id = tables.batches.c, known.identity.user_id
            open_ones = select(batches.id).where(batches.user_id == user_id, batches.state.in_(OPEN_STATES)).limit(1)
            is_last = connection.execute(open_ones).first() is None
            ended = self._batch(connection, row)
        if is_last:
            self.secrets.end(user_id)
        return ended

    # --- all users'

    def delete_old(self) -> None:
        """Deletes batches of all users whose time is over long since, ended or not."""
        batches = tables.batches.c
        before_s = int(self._store.now()) - self._store.settings.batches.days * _DAY_S
        with self._store.transaction() as connection:
            gone = connection.execute(select(tables.batches).where(batches.expires <= before_s)).all()
            for row in gone:
                _delete(connection, row)
        self._expect_open()

    # --- internals

    def _expect_open(self) -> None:
        """Forgets the credentials of users without an open batch."""
        with self._store.transaction() as connection:
            open_ones = select(tables.batches.c.user_id).where(tables.batches.c.state.in_(OPEN_STATES)).distinct()
            self.secrets.expect(connection.execute(open_ones).scalars())

    def _valid_secret(self, connection: Connection, user_id: str) -> str | None:
        """Returns a credential of the user that is still valid; forgets those that are not."""
        for secret in self.secrets.of(user_id):
            try:
                if self._logins.authenticate(connection, secret).identity.user_id == user_id:
                    return secret
            except AccountsError:
                self.secrets.forget(user_id, secret)
        return None

    @staticmethod
    def _row(connection: Connection, known: Authenticated, batch_id: str, param: str | None = None) -> Row[Any]:
        batches = tables.batches.c
        mine = (batches.user_id == known.identity.user_id) & (batches.id == known_id(batch_id))
        row = connection.execute(select(tables.batches).where(mine)).one_or_none()
        if row is None:
            raise AccountsError("not_found", "There is no such batch.", param=param)
        return row

    def _claimed(
        self, connection: Connection, secret: str, batch_id: str, claim: int
    ) -> tuple[Authenticated, Row[Any]]:
        """Raises AccountsError `conflict` if there was a later claim, or the batch has ended."""
        known = self._logins.authenticate(connection, secret)
        row = self._row(connection, known, batch_id)
        if row.claim != claim or row.state not in OPEN_STATES:
            raise AccountsError("conflict", "Another ingress has this batch.")
        return known, row

    def _prolonged(self, connection: Connection, row: Row[Any], **values: Any) -> Row[Any]:
        return self._changed(connection, row, leased_until=int(self._store.now()) + LEASE_S, **values)

    def _changed(
        self, connection: Connection, row: Row[Any], state: BatchState | None = None, **values: Any
    ) -> Row[Any]:
        """state: the new one, if it changes; its time is noted."""
        if state is not None:
            times = {**orjson.loads(row.times), state: int(self._store.now())}
            values |= {"state": state, "times": orjson.dumps(times).decode()}
        found = tables.batches.c.id == row.id
        connection.execute(update(tables.batches).where(found).values(**values))
        return connection.execute(select(tables.batches).where(found)).one()

    def _batch(self, connection: Connection, row: Row[Any]) -> StoredBatch:
        files = tables.files.c
        results = files.id.in_((row.output_id, row.error_id)) & (files.state == "ready")
        ready = set(connection.execute(select(files.id).where(results)).scalars())
        times: Mapping[str, int] = orjson.loads(row.times)
        return StoredBatch(
            id=row.id,
            created=row.created_us // _US,
            expires=row.expires,
            state=row.state,
            input_id=row.input_id,
            output_id=row.output_id,
            error_id=row.error_id,
            has_output=row.output_id in ready,
            has_errors=row.error_id in ready,
            total=row.total,
            completed=row.completed,
            failed=row.failed,
            times=times,
            sealed=row.sealed,
        )


def _delete(connection: Connection, row: Row[Any]) -> None:
    """Deletes a batch, and results that nobody has seen."""
    files = tables.files.c
    hide_files(connection, files.id.in_((row.output_id, row.error_id)) & (files.state == "open"))
    connection.execute(delete(tables.batches).where(tables.batches.c.id == row.id))
