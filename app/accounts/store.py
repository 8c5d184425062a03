"""What the parts of the accounts share: the database, the server's root key, the audit, the clock, and who has changed.

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
from app.settings import AccountsSettings, SettingsError

logger = logging.getLogger(__name__)

_ROOT = "root_key"
_MOST_CHANGES = 10_000
_DAY_S = 86_400
OPERATOR = "operator"
"""Who acts on the server's own machine, as the audit has it."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks for something; made from a credential, or for the operator."""

    id: str
    role: Role


class Changes:
    """Ids of users and credentials that ingresses must not know by heart any more; in memory only. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instance = secrets.token_hex(8)
        self._subjects: deque[str] = deque(maxlen=_MOST_CHANGES)
        self._position = 0

    @property
    def position(self) -> int:
        """How many there have been."""
        return self._position

    def add(self, subject: str) -> None:
        """The id of a user or a credential."""
        with self._lock:
            self._subjects.append(subject)
            self._position += 1

    def since(self, instance: str, position: int) -> Revocations:
        """Those after a position of this process' life."""
        with self._lock:
            missed = self._position - position
            if instance != self._instance or not 0 <= missed <= len(self._subjects):
                return Revocations(self._instance, self._position, None)
            subjects = frozenset(islice(self._subjects, len(self._subjects) - missed, None))
            return Revocations(self._instance, self._position, subjects)


@dataclass(slots=True)
class Store:
    """See the file."""

    database: Database
    root: RootKey
    settings: AccountsSettings
    now: Callable[[], float] = time.time
    """Unix seconds."""
    password_cost: PasswordCost = field(default_factory=PasswordCost)
    audit: Audit = field(init=False)
    changes: Changes = field(init=False, default_factory=Changes)

    def __post_init__(self) -> None:
        self.audit = Audit(self.root.audit_key)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """See Database.transaction."""
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
        """Adds a row to the audit. address: the client's."""
        if not self.settings.audit_addresses_days:
            address = None
        self.audit.note(connection, self.now(), actor, action, target, outcome, address)

    def forget_addresses(self) -> None:
        """Those that the audit has kept long enough: of whole days, for the audit is checked before."""
        before_s = (self.now() // _DAY_S - self.settings.audit_addresses_days) * _DAY_S
        with self.transaction() as connection:
            if not self.audit.forget_addresses(connection, before_s):
                logger.error("the audit was changed: it keeps addresses that are to be forgotten")

    def write_use(self, statement: Update) -> None:
        """Writes down a last use. A failure is logged only: a full disk must lock nobody out."""
        try:
            with self.transaction() as connection:
                connection.execute(statement)
        except SQLAlchemyError as error:
            logger.warning("the last use in %s was not written down: %s", statement.table, type(error).__qualname__)

    @property
    def default_limits(self) -> UserLimits:
        """Of users who have none of their own."""
        return UserLimits(**self.settings.limits.model_dump())

    def sealed_root(self) -> bytes:
        """The root key as it is stored. Raises SettingsError if there is none."""
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

    make: whether one that is not there or empty is made, which this KEK then seals. A service does not: on another
    machine than before it would begin without users. options: fields of Store. Raises SettingsError: the database
    can't be opened, or another KEK has sealed it.
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
    """Raises SettingsError if another KEK has sealed it."""
    try:
        return RootKey.open(kek, sealed)
    except SealError:
        raise SettingsError(
            f"accounts.key {settings.key}: not the key of accounts.database {settings.database}"
        ) from None


def rotate_kek(store: Store, new_kek: bytes) -> None:
    """Seals the root key with another KEK; the one before opens the database no more."""
    with store.transaction() as connection:
        write_meta(connection, _ROOT, store.root.sealed(new_kek))
        store.note(connection, OPERATOR, "rotate_key", "")
