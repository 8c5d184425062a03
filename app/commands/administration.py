"""Users as the command line works on them: through a running service, or in the database while no service runs.

A database has one owner, so the second way is refused while a service has it open.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import quote

import httpx

from app.accounts.accounts import OPERATOR_ACTS, Accounts
from app.accounts.key_source import read_kek
from app.accounts.passwords import new_password
from app.accounts.store import rotate_kek
from app.launch.config_file import load_config
from app.messages.accounts import (
    AccountsError,
    AuditPage,
    AuditRow,
    KeyInfo,
    NewKey,
    Role,
    UserChange,
    UserInfo,
    UserLimits,
)
from app.settings.accounts import AccountsSettings
from app.settings.knobs import SettingsError

if TYPE_CHECKING:  # it takes most of a second to import
    from openai import OpenAI

_TIMEOUT_S = 60.0


class AdministrationError(Exception):
    """The operation has failed; the message says why and what to do."""


class Administration(Protocol):
    """An administrator's operations. Every method raises AdministrationError or AccountsError."""

    def users(self) -> Sequence[UserInfo]:
        """Lists all users by name."""

    def add_user(self, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo: ...

    def change_user(self, name: str, change: UserChange) -> UserInfo:
        """Changes the given fields."""

    def delete_user(self, name: str) -> None:
        """Deletes a user with everything saved."""

    def reset_password(self, name: str, password: str) -> UserInfo:
        """Sets a password for the next login; the user's recovery code keeps what was saved."""

    def audit(self, after: int, limit: int) -> AuditPage:
        """Returns rows in order, from the one after `after`."""


class InDatabase:
    """Works on the database with its key, while no service runs."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def users(self) -> Sequence[UserInfo]:
        return self._accounts.users.all(OPERATOR_ACTS)

    def add_user(self, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo:
        new = new_password(password, self._accounts.store.password_cost)
        return self._accounts.users.add(OPERATOR_ACTS, name, new, role, limits)

    def change_user(self, name: str, change: UserChange) -> UserInfo:
        return self._accounts.users.change(OPERATOR_ACTS, name, change)

    def delete_user(self, name: str) -> None:
        self._accounts.users.delete(OPERATOR_ACTS, name)

    def reset_password(self, name: str, password: str) -> UserInfo:
        new = new_password(password, self._accounts.store.password_cost)
        return self._accounts.users.reset_password(OPERATOR_ACTS, name, new)

    def audit(self, after: int, limit: int) -> AuditPage:
        return self._accounts.audit(OPERATOR_ACTS, after, limit)


class OverHttp:
    """Works on a running service with a user's credential, which for Administration must be an administrator's."""

    def __init__(self, url: str, secret: str | None) -> None:
        """secret: an API key; None: call `log_in` next."""
        address = url.rstrip("/").removesuffix("/v1")
        if not address.startswith(("http://", "https://")):
            raise AdministrationError(f"--url {url}: not an address such as http://127.0.0.1:8000")
        self._client = httpx.Client(base_url=address, timeout=_TIMEOUT_S)
        self._secret = secret
        self._is_session = False
        self.can_recover = False
        """Whether a user who must choose a password can open earlier saved data with a recovery code."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the session that `log_in` began."""
        if self._is_session:
            with contextlib.suppress(AdministrationError):
                self._ask("POST", "/v1/auth/logout", {})
        self._client.close()

    def client(self) -> "OpenAI":
        """Returns OpenAI's client of the service, with the same credential."""
        from app.client.v1 import connect

        return connect(str(self._client.base_url).rstrip("/"), self._secret)

    def log_in(self, name: str, password: str) -> bool:
        """Begins and uses a session of that user. Returns whether the user must first choose a password."""
        session = self._ask("POST", "/v1/auth/login", {"name": name, "password": password})
        self._secret = session["token"]
        self._is_session = True
        self.can_recover = bool(session["can_recover"])
        return bool(session["must_choose_password"])

    def choose_password(self, password: str, new: str, recovery_code: str | None) -> str:
        """Replaces an administrator's password and returns a new recovery code.

        Without the previous code everything saved is lost.
        """
        body: dict[str, Any] = {"password": password, "new_password": new, "recovery_code": recovery_code}
        return str(
            self._ask("POST", "/v1/auth/password", body | {"lose_saved": recovery_code is None})["recovery_code"]
        )

    def own_keys(self) -> Sequence[KeyInfo]:
        return [_key(each) for each in self._ask("GET", "/v1/keys")["data"]]

    def add_key(self, label: str, days: int | None) -> NewKey:
        """Makes an API key. days: how long it is valid; None: until it is revoked."""
        answer = self._ask("POST", "/v1/keys", {"label": label, "expires_in_days": days})
        return NewKey(_key(answer), answer["secret"])

    def revoke_key(self, key_id: str) -> None:
        """Revokes one of the user's own keys."""
        self._ask("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    def memory(self) -> dict[str, Any]:
        """The size of the user's saved pages, as in `GET /v1/memory`."""
        answer: dict[str, Any] = self._ask("GET", "/v1/memory")
        return answer

    def forget(self, conversation: str | None) -> dict[str, Any]:
        """Destroys the keys of the user's saved pages: of one conversation, or with None of all."""
        query = "" if conversation is None else f"?conversation={quote(conversation, safe='')}"
        answer: dict[str, Any] = self._ask("DELETE", f"/v1/memory{query}")
        return answer

    def users(self) -> Sequence[UserInfo]:
        return [_user(each) for each in self._ask("GET", "/v1/admin/users")["data"]]

    def add_user(self, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo:
        body = {"name": name, "password": password, "role": role, "limits": _limits(limits)}
        return _user(self._ask("POST", "/v1/admin/users", body))

    def change_user(self, name: str, change: UserChange) -> UserInfo:
        limits = None if change.limits is None else _limits(change.limits)
        body = {"role": change.role, "state": change.state, "limits": limits}
        return _user(self._ask("POST", _path_of(name), body))

    def delete_user(self, name: str) -> None:
        self._ask("DELETE", _path_of(name))

    def reset_password(self, name: str, password: str) -> UserInfo:
        return _user(self._ask("POST", f"{_path_of(name)}/reset", {"password": password}))

    def audit(self, after: int, limit: int) -> AuditPage:
        answer = self._ask("GET", f"/v1/admin/audit?after={after}&limit={limit}")
        return AuditPage([AuditRow(**row) for row in answer["data"]], answer["intact"], answer["last"])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {} if self._secret is None else {"Authorization": f"Bearer {self._secret}"}
        try:
            response = self._client.request(method, path, json=body, headers=headers)
            answer = response.json()
            if response.is_error:
                raise AdministrationError(f"{self._client.base_url} says: {answer['error']['message']}")
            return answer
        except httpx.HTTPError as error:
            reason = f"no answer from {self._client.base_url}: is the service running? Without it use --config"
            raise AdministrationError(reason) from error
        except (ValueError, KeyError, TypeError) as error:
            raise AdministrationError(f"{self._client.base_url}: is that a Redoubt service?") from error


@contextlib.contextmanager
def in_database(config: Path) -> Iterator[InDatabase]:
    """Opens the database that a configuration file names, or makes it.

    Raises SettingsError, also while a service has it open.
    """
    accounts = Accounts.open(accounts_settings(config), make=True)
    try:
        yield InDatabase(accounts)
    finally:
        accounts.close()


def accounts_settings(config: Path) -> AccountsSettings:
    """Reads the accounts' settings. Raises SettingsError if the file has none."""
    settings = load_config(config).application.args.accounts
    if settings is None:
        raise SettingsError(f"{config}: args.accounts is missing, so there are no users")
    return settings


def rotate(config: Path, new_key: Path) -> None:
    """Seals the database with another key. Raises SettingsError."""
    settings = accounts_settings(config)
    new_kek = read_kek(f"file:{new_key}")
    accounts = Accounts.open(settings)
    try:
        rotate_kek(accounts.store, new_kek)
    finally:
        accounts.close()


ERRORS = (AdministrationError, AccountsError, SettingsError)
"""Errors that a user can correct."""


def _path_of(name: str) -> str:
    return f"/v1/admin/users/{quote(name, safe='')}"


def _limits(limits: UserLimits) -> dict[str, int | None]:
    return {name: getattr(limits, name) for name in UserLimits.__slots__}


def _user(answer: dict[str, Any]) -> UserInfo:
    return UserInfo(
        answer["id"],
        answer["name"],
        answer["role"],
        answer["state"],
        answer["created_at"],
        UserLimits(**answer["limits"]),
        answer["first_password_expires_at"],
    )


def _key(answer: dict[str, Any]) -> KeyInfo:
    return KeyInfo(answer["id"], answer["label"], answer["created_at"], answer["expires_at"])
