"""Opens the database: SQLite's file or a Postgres, with the newest tables, and for one process alone."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, make_url, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from app.accounts import tables
from app.settings import SettingsError

FIRST_USER = "Add the first user: redoubt user add NAME --admin --config FILE"
_IN_USE = "a running service has it open. Ask the service (--url), or stop it."
_POSTGRES_LOCK = 0x5244_4254
"""Any number, always the same: the advisory lock of the process that owns the accounts."""
# SQLite keeps what was deleted out of the file, and a transaction on the disk before it says that it is done. Its
# write-ahead log is not used: before 3.51.3 it could lose transactions.
_PRAGMAS = ("journal_mode=TRUNCATE", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON")

_ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "hide_parameters": True}
"""Errors, which are logged, have no values in them."""


class InUseError(SettingsError):
    """Another process owns the database."""


class Database:
    """One process' way to the tables. One thread at a time uses it."""

    def __init__(self, place: str, *, make: bool) -> None:
        """Opens it and brings its tables up to date.

        place: a path of SQLite's file, or a URL of Postgres without a password. make: whether a file that is not there
        is made. Raises SettingsError, also if another process has it open.
        """
        self._closing = ExitStack()
        try:
            self._engine = self._open(place, make=make)
            with self.transaction() as connection:
                _migrate(connection, place)
        except (OSError, SQLAlchemyError, CommandError, ModuleNotFoundError) as error:
            self.close()
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise SettingsError(f"accounts.database {place}: {reason}") from error
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection whose changes are there together when the block ends, or not at all."""
        with self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Gives it free for another process."""
        self._closing.close()

    def _open(self, place: str, *, make: bool) -> Engine:
        if "://" not in place:
            path = Path(place).absolute()
            if not make and not path.exists():
                raise SettingsError(f"accounts.database {place}: there is none yet. {FIRST_USER}")
            self._closing.enter_context(_locked_file(path))
            engine = create_engine(f"sqlite:///{path}", **_ONE_CONNECTION)
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            self._closing.callback(engine.dispose)
            return engine
        try:
            url = make_url(place)
            if url.password is not None or "password" in url.query:
                raise SettingsError("accounts.database: keep the password out of the URL: PGPASSFILE names its file")
            engine = create_engine(url, pool_pre_ping=True, **_ONE_CONNECTION)
        except (ArgumentError, NoSuchModuleError) as error:
            raise SettingsError(f"accounts.database {place}: not a URL of a database: {error}") from error
        event.listen(engine, "connect", _lock_postgres)
        event.listen(engine, "close", _unlock_postgres)
        self._closing.callback(engine.dispose)
        return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions are SQLAlchemy's to begin
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _locked_file(path: Path) -> Iterator[None]:
    """Makes the database's file if there is none, for its owner alone, and locks another beside it."""
    lock = path.with_name(f"{path.name}.lock")
    with _private_file(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(f"accounts.database {path}: {_IN_USE}") from None
        _private_file(path).close()
        yield


def _private_file(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")


def _lock_postgres(connection: Any, _: object) -> None:
    """The lock is the connection's, of which there is one: who has it owns the database, after a new connect too."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", (_POSTGRES_LOCK,))
        (owns,) = cursor.fetchone()
    connection.commit()
    if not owns:
        connection.close()
        raise InUseError(f"accounts.database: {_IN_USE}")


def _unlock_postgres(connection: Any, _: object) -> None:
    """Else the lock is there until the server notices that the connection has ended."""
    with suppress(Exception):  # one that is lost has no lock
        connection.execute("SELECT pg_advisory_unlock(%s)", (_POSTGRES_LOCK,))


def _migrate(connection: Connection, place: str) -> None:
    """Brings the tables up to date. Raises SettingsError, and changes nothing, if a newer version has made them."""
    config = Config()
    config.set_main_option("script_location", "app.accounts:migrations")
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    known = {one.revision for one in script.walk_revisions()}
    unknown = [one for one in MigrationContext.configure(connection).get_current_heads() if one not in known]
    if unknown:
        raise SettingsError(
            f"accounts.database {place}: a newer version of Redoubt has made its tables (revision {unknown[0]}), and "
            f"this one knows no later revision than {script.get_current_head()}. Nothing was changed. Install the "
            "newer version again, or restore the backup from before the upgrade."
        )
    command.upgrade(config, "head")


def read_meta(connection: Connection, name: str) -> bytes | None:
    """A value of the table `meta`."""
    value: bytes | None = connection.execute(
        select(tables.meta.c.value).where(tables.meta.c.name == name)
    ).scalar_one_or_none()
    return value


def write_meta(connection: Connection, name: str, value: bytes) -> None:
    """Replaces the value, or adds it."""
    changed = connection.execute(tables.meta.update().where(tables.meta.c.name == name).values(value=value))
    if not changed.rowcount:
        connection.execute(tables.meta.insert().values(name=name, value=value))
