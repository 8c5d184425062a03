"""`/v1/auth`, `/v1/keys` and `/v1/admin`: what clients send and read. Times are Unix seconds."""

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
    """Whether the token comes as a cookie, for browsers, and not in the answer."""


class UserSession(BaseModel):
    """Who a credential stands for."""

    object: Literal["session"] = "session"
    user_id: str
    name: str
    role: RoleName
    kind: Literal["api_key", "session"]
    expires_at: int | None
    """None: it does not expire by itself."""
    limits: "LimitsObject"
    """Those that hold: the user's own, or the service's."""
    must_choose_password: bool
    """Whether nothing else is served before `POST /v1/auth/password`: an administrator has set the present one."""
    can_recover: bool
    """Where that is so: whether your recovery code opens what was saved before."""


class NewSession(UserSession):
    """The answer to a login."""

    token: str | None
    """To be sent as a key is; None: it is in the cookie."""


class LogoutRequest(Wire):
    """`POST /v1/auth/logout`."""

    everywhere: bool | None = None
    """Whether all sessions of the user end."""


class EndedSessions(BaseModel):
    """The answer to a logout."""

    object: Literal["session.ended"] = "session.ended"
    sessions: int
    saved_pages: int
    """Of the user's, those that were still to be saved and are on disk now; 0, as the rest, where none are saved."""
    saved_bytes: int
    unsaved_pages: int
    """They could not be saved, and are computed again."""
    unacknowledged: int
    """Workers that failed or did not answer: they may still have the user's pages in memory."""


class SessionObject(BaseModel):
    """One of your sessions."""

    object: Literal["session.info"] = "session.info"
    id: str
    created_at: int
    seen_at: int
    """Its last use, to within some minutes."""
    expires_at: int
    current: bool
    """Whether it is the one that asks."""


class SessionList(BaseModel):
    """`GET /v1/auth/sessions`: those that hold, the latest first."""

    object: Literal["list"] = "list"
    data: list[SessionObject]


class PasswordRequest(Wire):
    """`POST /v1/auth/password`: all other sessions of the user end."""

    password: Password
    new_password: Password
    recovery_code: Annotated[str, StringConstraints(max_length=256)] | None = None
    """After a reset: opens what was saved before."""
    lose_saved: bool | None = None
    """After a reset: the recovery code is lost, and all that was saved before is deleted."""


class PasswordChanged(BaseModel):
    """The answer to that."""

    object: Literal["done"] = "done"
    recovery_code: str | None
    """A new one, where an administrator had set the password before. Keep it: with it a forgotten password can be
    reset without loss. It is shown this once, and to nobody else."""
    memory_lost: bool
    """Whether what was saved before is deleted."""


class RecoveryRequest(Wire):
    """`POST /v1/auth/recovery`: the recovery code so far is lost, and opens nothing any more."""

    password: Password
    """The present one."""


class RecoveryCode(BaseModel):
    """The answer to that."""

    object: Literal["recovery_code"] = "recovery_code"
    recovery_code: str
    """The new one; it is shown this once."""


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
    """An API key, the only time that it is shown."""

    secret: str


class KeyList(BaseModel):
    """`GET /v1/keys`."""

    object: Literal["list"] = "list"
    data: list[KeyObject]


class Done(BaseModel):
    """It is done, and there is nothing else to say."""

    object: Literal["done"] = "done"


class LimitsObject(BaseModel):
    """What a user may take; none: no limit."""

    requests_per_minute: int | None
    tokens_per_day: int | None
    concurrent: int | None
    memory_bytes: int | None


class LimitsRequest(Wire):
    """A user's own limits; none: the service's."""

    requests_per_minute: AtLeastOne | None = None
    tokens_per_day: AtLeastOne | None = None
    concurrent: AtLeastOne | None = None
    memory_bytes: Limit | None = None


class UserRequest(Wire):
    """`POST /v1/admin/users`."""

    name: Name
    password: Password
    """For the first login, at which the user chooses another. It expires (`accounts.first_password_days`)."""
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
    """The user's own."""
    first_password_expires_at: int | None
    """Until when the password that an administrator has set is good for the first login; none: the user has chosen."""


class UserList(BaseModel):
    """`GET /v1/admin/users`."""

    object: Literal["list"] = "list"
    data: list[UserObject]


class UserChangeRequest(Wire):
    """`POST /v1/admin/users/{name}`: what is given is changed. Limits are replaced as a whole."""

    role: RoleName | None = None
    state: Literal["active", "disabled"] | None = None
    limits: LimitsRequest | None = None


class ResetRequest(Wire):
    """`POST /v1/admin/users/{name}/reset`: a password for the next login. All keys and sessions of the user end."""

    password: Password


class UsageObject(BaseModel):
    """What a user took in a day, with one credential and one model."""

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
    """What somebody did."""

    seq: int
    at: int
    actor: str
    action: str
    object: str
    outcome: str
    address: str | None
    """Of a login's client; none: any other row, or it is not known, or forgotten (`accounts.audit_addresses_days`)."""


class AuditList(BaseModel):
    """`GET /v1/admin/audit`."""

    object: Literal["list"] = "list"
    data: list[AuditObject]
    intact: bool
    """Whether nobody has changed, taken out or cut off a row of the whole audit."""
    last: int
    """The number of the newest row there is; 0: none."""
