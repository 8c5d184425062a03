"""Accounts in a database of their own, with cheap password hashes and a clock that tests set."""

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from app.accounts import database
from app.accounts.accounts import OPERATOR_ACTS, Accounts
from app.accounts.database import Database
from app.accounts.keys import PasswordCost
from app.accounts.passwords import new_password
from app.accounts.store import open_store
from app.messages.accounts import AccountsError, UserInfo, UserLimits
from app.settings.accounts import AccountsSettings

KEK = bytes(range(32))
CHEAP = PasswordCost(memory_kib=64, passes=1, lanes=1)
PASSWORD = "a long enough password"


FIRST = "a password of the administrator's"


def _compile_once() -> None:
    """SQLAlchemy compiles a statement once an engine and dialect: here each test has its own, of the same kind."""
    statements: dict[Any, Any] = {}
    kind: Any = SQLiteDialect_pysqlite
    module: Any = database
    kind.__hash__, kind.__eq__ = lambda self: hash(type(self)), lambda self, other: type(self) is type(other)

    def create_engine(*arguments: Any, **options: Any) -> Engine:
        return sqlalchemy.create_engine(*arguments, execution_options={"compiled_cache": statements}, **options)

    module.create_engine = create_engine


_compile_once()


@functools.cache
def _empty_database() -> bytes:
    """A file with all tables and nothing in them: making them takes longer than many tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accounts.db"
        Database(str(path), make=True).close()
        return path.read_bytes()


def prepare(database: str) -> str:
    """Writes an empty database into a new file, and returns its path."""
    Path(database).write_bytes(_empty_database())
    return database


@dataclass(frozen=True)
class Added:
    """A user who has chosen PASSWORD."""

    info: UserInfo
    recovery_code: str


def added(accounts: Accounts, name: str, options: dict[str, Any]) -> Added:
    values: dict[str, Any] = {"role": "user", "limits": UserLimits()} | options
    info = accounts.users.add(OPERATOR_ACTS, name, new_password(FIRST, CHEAP), **values)
    return Added(info, choose(accounts, name) or "")


def choose(accounts: Accounts, name: str, code: str | None = None, *, new: str = PASSWORD) -> str | None:
    """Completes the first login and returns the recovery code. Without the former code all is lost."""
    logins = accounts.logins
    challenge = logins.challenge(name)
    stretched = challenge.stretched(FIRST)
    token = logins.log_in(challenge, stretched).token
    chosen = new_password(new, CHEAP)
    changed = logins.change_password(token, challenge, stretched, chosen, code, lose_saved=code is None)
    logins.log_out(token, everywhere=False)
    return changed.recovery_code


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


class World:
    """Accounts that can be closed and opened again."""

    def __init__(self, database: str, **settings: Any) -> None:
        self.clock = Clock()
        self.settings = AccountsSettings(database=database, key="file:/nowhere", **settings)
        self.accounts = self.opened()

    def opened(self, kek: bytes = KEK) -> Accounts:
        self.accounts = Accounts(open_store(self.settings, kek, make=True, now=self.clock, password_cost=CHEAP))
        return self.accounts

    def reopen(self, kek: bytes = KEK) -> Accounts:
        self.accounts.close()
        return self.opened(kek)

    def add(self, name: str, **options: Any) -> Added:
        return added(self.accounts, name, options)

    def log_in(self, name: str, password: str = PASSWORD, address: str | None = None) -> str:
        challenge = self.accounts.logins.challenge(name)
        return self.accounts.logins.log_in(challenge, challenge.stretched(password), address).token

    def refusal(self, secret: str) -> str | None:
        """The refusal of a credential; None if it is valid."""
        try:
            self.accounts.logins.identify(secret)
        except AccountsError as error:
            return error.refusal.code
        return None
