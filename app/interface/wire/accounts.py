"""The types of `/v1/auth`, `/v1/keys` and `/v1/admin`. Times are Unix seconds."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from app.interface.wire.fields import Wire

Name = Annotated[str, StringConstraints(max_length=256)]
Password = Annotated[str, StringConstraints(max_length=4096)]
RoleName = Literal["user", "admin"]
Limit = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**53)]


class LoginRequest(Wire):
    """`POST /v1/auth/login`."""

    name: Name
    password: Password
    cookie: bool | None = None
    """Whether the token is set as a cookie, for browsers, instead of returned."""


class UserSession(BaseModel):
    """The user of a credential."""

    object: Literal["session"] = "session"
    user_id: str
    name: str
    role: RoleName
    kind: Literal["api_key", "session"]
    expires_at: int | None
    """None: it does not expire by itself."""
    limits: "LimitsObject"
    """The limits in effect: the user's own, or the service's."""
    must_choose_password: bool
    """Whether `POST /v1/auth/password` is needed first: an administrator has set the current password."""
    can_recover: bool
    """In that case: whether your recovery code opens what was saved before."""


class NewSession(UserSession):
    """The response of a login."""

    token: str | None
    """The token, to be sent like an API key; None: it is in the cookie."""


class LogoutRequest(Wire):
    """`POST /v1/auth/logout`."""

    everywhere: bool | None = None
    """Whether to end all sessions of the user."""


class EndedSessions(BaseModel):
    """The response of a logout."""

    object: Literal["session.ended"] = "session.ended"
    sessions: int
    saved_pages: int
    """The user's KV pages that were unsaved and are on disk now; 0, like the next fields, where nothing is saved."""
    saved_bytes: int
    unsaved_pages: int
    """KV pages that could not be saved; they are computed again."""
    unacknowledged: int
    """Workers that failed or did not answer: they may still have the user's KV pages in memory."""


class SessionObject(BaseModel):
    """A session of the caller."""

    object: Literal["session.info"] = "session.info"
    id: str
    created_at: int
    seen_at: int
    """The last use, to within some minutes."""
    expires_at: int
    current: bool
    """Whether this request uses it."""
    device: str | None
    """Where it was begun, such as "Firefox on Linux"; null if unknown."""


class SessionList(BaseModel):
    """`GET /v1/auth/sessions`: valid sessions, newest first."""

    object: Literal["list"] = "list"
    data: list[SessionObject]


class PasswordRequest(Wire):
    """`POST /v1/auth/password`: changes the password and ends all other sessions of the user."""

    password: Password
    new_password: Password
    recovery_code: Annotated[str, StringConstraints(max_length=256)] | None = None
    """After a reset: opens what was saved before."""
    lose_saved: bool | None = None
    """After a reset: confirms that the recovery code is lost and that everything saved before is deleted."""


class PasswordChanged(BaseModel):
    """The response of `POST /v1/auth/password`."""

    object: Literal["done"] = "done"
    recovery_code: str | None
    """A new code, if an administrator had set the previous password. It is shown only once. Keep it: with it a
    forgotten password can be reset without loss."""
    memory_lost: bool
    """Whether everything saved before is deleted."""


class RecoveryRequest(Wire):
    """`POST /v1/auth/recovery`: replaces the recovery code; the old one becomes invalid."""

    password: Password
    """The current password."""


class RecoveryCode(BaseModel):
    """The response of `POST /v1/auth/recovery`."""

    object: Literal["recovery_code"] = "recovery_code"
    recovery_code: str
    """The new code. It is shown only once."""


class KeyRequest(Wire):
    """`POST /v1/keys`."""

    label: str | None = None
    expires_in_days: Annotated[int, Field(ge=1, le=3650)] | None = None


class KeyObject(BaseModel):
    """An API key."""

    object: Literal["api_key"] = "api_key"
    id: str
    label: str
    created_at: int
    expires_at: int | None


class NewKeyObject(KeyObject):
    """A new API key, with its secret, which is shown only once."""

    secret: str


class KeyList(BaseModel):
    """`GET /v1/keys`."""

    object: Literal["list"] = "list"
    data: list[KeyObject]


class Done(BaseModel):
    """The response of requests that return nothing else."""

    object: Literal["done"] = "done"


class LimitsObject(BaseModel):
    """A user's limits; null: unlimited."""

    requests_per_minute: int | None
    tokens_per_day: int | None
    concurrent: int | None
    memory_bytes: int | None


class UsedLimit(BaseModel):
    """A limit and what is used of it; null: unlimited, or not counted."""

    limit: int | None
    used: int | None


class UsedLimits(BaseModel):
    """`GET /v1/auth/limits`."""

    object: Literal["limits"] = "limits"
    requests_per_minute: UsedLimit
    """Used: in the last minute; counted where there is a limit."""
    tokens_per_day: UsedLimit
    """The day is UTC's."""
    concurrent: UsedLimit
    """Used: requests that run now."""
    stored_bytes: UsedLimit
    """The size of stored conversations and responses."""


class LimitsRequest(Wire):
    """A user's own limits; null: the service's."""

    requests_per_minute: AtLeastOne | None = None
    tokens_per_day: AtLeastOne | None = None
    concurrent: AtLeastOne | None = None
    memory_bytes: Limit | None = None


class UserRequest(Wire):
    """`POST /v1/admin/users`."""

    name: Name
    password: Password
    """For the first login, at which the user chooses another password. It expires (`accounts.first_password_days`)."""
    role: RoleName | None = None
    """None: user."""
    limits: LimitsRequest | None = None


class UserObject(BaseModel):
    """A user."""

    object: Literal["user"] = "user"
    id: str
    name: str
    role: RoleName
    state: Literal["active", "disabled"]
    created_at: int
    limits: LimitsObject
    """The user's own limits."""
    first_password_expires_at: int | None
    """When the password set by an administrator expires; null: the user has chosen one."""


class UserList(BaseModel):
    """`GET /v1/admin/users`."""

    object: Literal["list"] = "list"
    data: list[UserObject]


class UserChangeRequest(Wire):
    """`POST /v1/admin/users/{name}`: changes the given fields. Limits are replaced as a whole."""

    role: RoleName | None = None
    state: Literal["active", "disabled"] | None = None
    limits: LimitsRequest | None = None


class ResetRequest(Wire):
    """`POST /v1/admin/users/{name}/reset`: sets a password for the next login; all keys and sessions end."""

    password: Password


class UsageObject(BaseModel):
    """A user's usage of a day, for one credential and one model."""

    user_id: str
    credential: str
    day: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class UsageList(BaseModel):
    """`GET /v1/admin/usage`."""

    object: Literal["list"] = "list"
    data: list[UsageObject]


class AuditObject(BaseModel):
    """A row of the audit log."""

    seq: int
    at: int
    actor: str
    action: str
    object: str
    outcome: str
    address: str | None
    """The client of a login; null for other rows, or if unknown or deleted (`accounts.audit_addresses_days`)."""


class AuditList(BaseModel):
    """`GET /v1/admin/audit`."""

    object: Literal["list"] = "list"
    data: list[AuditObject]
    intact: bool
    """Whether no row of the whole audit log was changed, removed or cut off."""
    last: int
    """The number of the newest row; 0 if there is none."""
