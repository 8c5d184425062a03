"""What the parts of the accounts share: database, root key, audit, clock, and recent changes for the ingresses.

`open_store` makes it from the settings.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Update, select
from sqlalchemy.exc import SQLAlchemyError

from app.accounts import tables
from app.accounts.audit import Audit
from app.accounts.database import FIRST_USER, Database, read_meta, write_meta
from app.accounts.keys import PasswordCost, RootKey
from app.messages.accounts import Revocations, Role, UserLimits
from app.sealing.records import SealError
from app.settings.accounts import AccountsSettings
from app.settings.knobs import SettingsError

logger = logging.getLogger(__name__)

_ROOT = "root_key"
_MOST_CHANGES = 10_000
_DAY_S = 86_400
OPERATOR = "operator"
"""The audit's name for commands that run on the server's own machine."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who performs an action: the user of a credential, or the operator."""

    id: str
    role: Role


class Changes:
    """Ids of users and credentials that ingresses must no longer cache. In memory only; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instance = secrets.token_hex(8)
        self._subjects: deque[str] = deque(maxlen=_MOST_CHANGES)
        self._position = 0

    @property
    def position(self) -> int:
        """Returns how many changes there have been."""
        return self._position

    def add(self, subject: str) -> None:
        """subject: the id of a user or a credential."""
        with self._lock:
            self._subjects.append(subject)
            self._position += 1

    def since(self, instance: str, position: int) -> Revocations:
        """Returns the changes after a position; `instance` tells whether the position is of this process."""
        with self._lock:
            missed = self._position - position
            if instance != self._instance or not 0 <= missed <= len(self._subjects):
                return Revocations(self._instance, self._position, None)
            subjects = frozenset(islice(self._subjects, len(self._subjects) - missed, None))
            return Revocations(self._instance, self._position, subjects)


@dataclass(slots=True)
class Store:
    """The database, the root key and the settings, with what is made of them."""

    database: Database
    root: RootKey
    settings: AccountsSettings
    now: Callable[[], float] = time.time
    """Returns Unix seconds."""
    password_cost: PasswordCost = field(default_factory=PasswordCost)
    audit: Audit = field(init=False)
    changes: Changes = field(init=False, default_factory=Changes)

    def __post_init__(self) -> None:
        self.audit = Audit(self.root.audit_key)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Opens a transaction as `Database.transaction` does."""
        with self.database.transaction() as connection:
            yield connection

    def note(
        self,
        connection: Connection,
        actor: str,
        action: str,
        target: str,
        outcome: str = "ok",
        address: str | None = None,
    ) -> None:
        """Appends a row to the audit. address: the client's; dropped if the settings keep none."""
        if not self.settings.audit_addresses_days:
            address = None
        self.audit.note(connection, self.now(), actor, action, target, outcome, address)

    def forget_addresses(self) -> None:
        """Deletes addresses older than the settings allow, by whole days: each deletion checks the whole chain."""
        before_s = (self.now() // _DAY_S - self.settings.audit_addresses_days) * _DAY_S
        with self.transaction() as connection:
            if not self.audit.forget_addresses(connection, before_s):
                logger.error("the audit was changed: it keeps addresses that are to be forgotten")

    def write_use(self, statement: Update) -> None:
        """Writes a last use. A failure is only logged: a full disk must lock nobody out."""
        try:
            with self.transaction() as connection:
                connection.execute(statement)
        except SQLAlchemyError as error:
            logger.warning("the last use in %s was not written down: %s", statement.table, type(error).__qualname__)

    @property
    def default_limits(self) -> UserLimits:
        """The limits of users who have none of their own."""
        return UserLimits(**self.settings.limits.model_dump())

    def sealed_root(self) -> bytes:
        """Returns the root key as it is stored. Raises SettingsError if there is none."""
        with self.transaction() as connection:
            sealed = read_meta(connection, _ROOT)
        if sealed is None:
            raise SettingsError(f"accounts.database {self.settings.database}: it has no users yet. {FIRST_USER}")
        return sealed

    def user_of_name(self, connection: Connection, name: str) -> Row[Any] | None:
        """name: normalized."""
        found = tables.users.c.name_lookup == self.root.name_lookup(name)
        return connection.execute(select(tables.users).where(found)).one_or_none()


def open_store(settings: AccountsSettings, kek: bytes, *, make: bool, **options: Any) -> Store:
    """Opens the database.

    make: create it if it is missing or empty, with a new root key under this KEK. A service must not: on a wrong
    machine it would start without users. options: fields of Store. Raises SettingsError if the database can't be
    opened or belongs to another KEK.
    """
    database = Database(settings.database, make=make)
    try:
        with database.transaction() as connection:
            sealed = read_meta(connection, _ROOT)
            if sealed is None and not make:
                raise SettingsError(f"accounts.database {settings.database}: it has no users yet. {FIRST_USER}")
            if sealed is None:
                root = RootKey.new()
                write_meta(connection, _ROOT, root.sealed(kek))
            else:
                root = opened_root(settings, kek, sealed)
    except BaseException:
        database.close()
        raise
    return Store(database, root, settings, **options)


def opened_root(settings: AccountsSettings, kek: bytes, sealed: bytes) -> RootKey:
    """Opens the root key. Raises SettingsError if another KEK has sealed it."""
    try:
        return RootKey.open(kek, sealed)
    except SealError:
        raise SettingsError(
            f"accounts.key {settings.key}: not the key of accounts.database {settings.database}"
        ) from None


def rotate_kek(store: Store, new_kek: bytes) -> None:
    """Seals the root key under a new KEK; the old one no longer opens the database."""
    with store.transaction() as connection:
        write_meta(connection, _ROOT, store.root.sealed(new_kek))
        store.note(connection, OPERATOR, "rotate_key", "")
