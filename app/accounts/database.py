"""Opens the database, SQLite or Postgres, migrates its tables, and locks it for this process."""

import fcntl
import functools
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
from app.settings.knobs import SettingsError

FIRST_USER = "Add the first user: redoubt user add NAME --admin --config FILE"
_IN_USE = "a running service has it open. Ask the service (--url), or stop it."
_POSTGRES_LOCK = 0x5244_4254
"""The advisory lock of the process that owns the accounts; an arbitrary constant."""
# SQLite overwrites deleted data in the file, and syncs a transaction to disk before it reports success. Write-ahead
# logging is not used: before 3.51.3 it could lose transactions.
_PRAGMAS = ("journal_mode=TRUNCATE", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON")

_ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "hide_parameters": True}
"""Errors are logged, so they must not contain values."""


class InUseError(SettingsError):
    """Another process owns the database."""


class Database:
    """This process's connection to the database. One thread at a time may use it."""

    def __init__(self, place: str, *, make: bool) -> None:
        """Opens the database and migrates its tables.

        place: the path of an SQLite file, or a Postgres URL without a password. make: create a missing file. Raises
        SettingsError, also if another process has it open.
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
        """Yields a connection; its changes are committed together at the end, or rolled back on an error."""
        with self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Releases the database for other processes."""
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
    connection.isolation_level = None  # SQLAlchemy begins transactions
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _locked_file(path: Path) -> Iterator[None]:
    """Locks a file beside the database's, and creates the database's file, readable by its owner only, if missing."""
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
    """Takes the advisory lock, which belongs to the only connection; a reconnect takes it again."""
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
    """Migrates the tables. Raises SettingsError, and changes nothing, if a newer version has made them."""
    current, script = MigrationContext.configure(connection).get_current_heads(), _migrations()
    if current == tuple(script.get_heads()):
        return
    known = {one.revision for one in script.walk_revisions()}
    unknown = [one for one in current if one not in known]
    if unknown:
        raise SettingsError(
            f"accounts.database {place}: a newer version of Redoubt has made its tables (revision {unknown[0]}), and "
            f"this one knows no later revision than {script.get_current_head()}. Nothing was changed. Install the "
            "newer version again, or restore the backup from before the upgrade."
        )
    config = _alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", "app.accounts:migrations")
    return config


@functools.cache
def _migrations() -> ScriptDirectory:
    """Those that this version knows."""
    return ScriptDirectory.from_config(_alembic_config())


def read_meta(connection: Connection, name: str) -> bytes | None:
    """Reads a value of the table `meta`."""
    value: bytes | None = connection.execute(
        select(tables.meta.c.value).where(tables.meta.c.name == name)
    ).scalar_one_or_none()
    return value


def write_meta(connection: Connection, name: str, value: bytes) -> None:
    """Inserts or replaces a value of the table `meta`."""
    changed = connection.execute(tables.meta.update().where(tables.meta.c.name == name).values(value=value))
    if not changed.rowcount:
        connection.execute(tables.meta.insert().values(name=name, value=value))
