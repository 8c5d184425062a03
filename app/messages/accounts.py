"""Messages between an ingress and the accounts. Frozen and picklable; secrets and keys stay out of every repr."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Role = Literal["user", "admin"]
State = Literal["active", "disabled"]
RefusalCode = Literal[
    "invalid_api_key",
    "session_expired",
    "invalid_login",
    "password_change_required",
    "password_expired",
    "recovery_code_required",
    "too_many_logins",
    "admin_only",
    "owner_only",
    "not_found",
    "conflict",
    "conversation_conflict",
    "invalid_value",
    "rate_limit_exceeded",
    "insufficient_quota",
    "service_unavailable",
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the accounts refuse something, in a message for the user."""

    code: RefusalCode
    message: str
    param: str | None = None
    """The wrong field."""
    retry_after_s: int | None = None


class AccountsError(Exception):
    """The accounts refuse something; the message may be shown to the user."""

    def __init__(
        self, code: RefusalCode, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message, param, retry_after_s)

    @classmethod
    def of(cls, refusal: Refusal) -> "AccountsError":
        """Makes the error for a refusal."""
        return cls(refusal.code, refusal.message, param=refusal.param, retry_after_s=refusal.retry_after_s)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Limits of one user; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Prompt and output tokens per day in UTC. A request that begins below the limit may end above it."""
    concurrent: int | None = None
    """Requests at the same time."""
    memory_bytes: int | None = None
    """Size of saved pages."""

    def or_else(self, defaults: "UserLimits") -> "UserLimits":
        """Returns these limits, with the defaults where there is none."""
        return UserLimits(
            *(
                getattr(defaults, name) if getattr(self, name) is None else getattr(self, name)
                for name in UserLimits.__slots__
            )
        )


@dataclass(frozen=True, slots=True)
class PageKeys:
    """Keys with which a user's saved pages are found and opened, whatever the conversation."""

    owner: str
    """The folder of the user's pages: 32 hex digits."""
    names_key: bytes = field(repr=False)
    shared_key: bytes = field(repr=False)
    """SK: for pages of system prompt and tools."""
    shared_key_id: bytes


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """One of a user's conversations, and the key of its saved pages."""

    conversation_id: str
    key: bytes = field(repr=False)
    key_id: bytes


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Result of destroying keys of a user's saved pages; the files still exist."""

    conversations: int
    key_id: bytes | None
    """Id of the destroyed key; None: all of the user's were destroyed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that a credential stands for."""

    user_id: str
    name: str
    role: Role
    credential: str
    """The API key's or the session's id, which is no secret."""
    kind: Literal["api_key", "session"]
    expires: float | None
    """Unix seconds; None: it does not expire by itself."""
    limits: UserLimits
    pages: PageKeys
    texts_key: bytes = field(repr=False)
    """Key that seals the user's stored conversations and responses."""
    must_choose_password: bool = False
    """An administrator has set the present password: until the user chooses another, nothing else is served, and all
    keys here open nothing."""
    can_recover: bool = False
    """Whether a recovery code can open what was saved before, when a password must be chosen."""


@dataclass(frozen=True, slots=True)
class Session:
    """A login. The token is shown once."""

    token: str = field(repr=False)
    identity: Identity


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An API key, without its secret."""

    id: str
    label: str
    created: int
    expires: int | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new API key with its secret, which is shown once."""

    info: KeyInfo
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user as administrators see it, without any texts."""

    id: str
    name: str
    role: Role
    state: State
    created: int
    limits: UserLimits
    """The user's own limits; the service's defaults apply where there is none."""
    first_password_expires: int | None = None
    """Unix seconds until which the administrator's password is valid for the first login; None: the user has chosen
    another."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One of a user's sessions, without its token."""

    id: str
    created: int
    """Unix seconds; so are the next two."""
    seen: int
    """Last use, to within some minutes."""
    expires: int
    is_current: bool
    """Whether it is the session that asks."""
    device: str | None
    """Where it was begun, such as "Firefox on Linux"; None if unknown."""


@dataclass(frozen=True, slots=True)
class LimitsUsed:
    """What a user's limits have been used of."""

    requests_of_minute: int | None
    """None: they are counted only where they have a limit."""
    tokens_of_day: int
    running: int
    """Requests at present."""
    stored_bytes: int
    """Size of the stored conversations and responses; the next one is its limit."""
    most_stored_bytes: int


@dataclass(frozen=True, slots=True)
class ChangedPassword:
    """The answer to a user who has changed the password."""

    recovery_code: str | None = field(default=None, repr=False)
    """A new code, after a password set by an administrator. It is shown only this once."""
    memory_lost: bool = False
    """Whether the user's saved data can no longer be opened."""
    lost_folder: str | None = None
    """The folder of those pages: 32 hex digits."""


@dataclass(frozen=True, slots=True)
class UserChange:
    """An administrator's changes to a user; None: unchanged."""

    role: Role | None = None
    state: State | None = None
    limits: UserLimits | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A user's usage in a day, with one credential and one model."""

    user_id: str
    credential: str
    day: str
    """Date in UTC, such as 2026-01-31."""
    model: str
    requests: int
    prompt: int
    """Prompt tokens; a prompt with several choices counts once."""
    cached: int
    """Prompt tokens that the prefix cache had."""
    output: int


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """Usage in some days, over all credentials and models; fields as in UsageRow."""

    requests: int
    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class UserUsage:
    """A user's usage, by days in UTC including the present one."""

    user_id: str
    today: UsageCounts
    days_7: UsageCounts
    days_30: UsageCounts


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry of the audit log, without any texts."""

    seq: int
    at: int
    """Unix seconds."""
    actor: str
    """A user's id, "operator" (the command line on the server's own machine) or "unknown"."""
    action: str
    object: str
    outcome: str
    address: str | None = None
    """The login client's address; None if unknown or forgotten."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A part of the audit log."""

    rows: Sequence[AuditRow]
    intact: bool
    """Whether the whole audit log is unchanged: no row changed, removed or cut off."""
    last: int
    """Number of the newest row; 0: none."""


@dataclass(frozen=True, slots=True)
class RateState:
    """Remaining limits of a user, for `x-ratelimit-*` headers; None: no such limit."""

    limit_requests: int | None = None
    remaining_requests: int = 0
    reset_requests_s: float = 0.0
    limit_tokens: int | None = None
    remaining_tokens: int = 0
    reset_tokens_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a user's request may begin."""

    identity: Identity
    rates: RateState
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Revocations:
    """Credentials that have changed since the last call."""

    instance: str
    """Changes when the accounts have restarted; then nothing known of them is valid any more."""
    position: int
    """The position to pass to the next call."""
    subjects: frozenset[str] | None
    """Ids of users and credentials; None: any may have changed."""


class AccountsClient(Protocol):
    """The ingress' interface to the accounts. Every method raises AccountsError; `secret` is a key or session token."""

    async def identify(self, secret: str) -> Identity:
        """Returns the identity of a credential. Refuses with `invalid_api_key` or `session_expired`."""

    async def admit(self, secret: str, *, in_batch: bool = False) -> Admission:
        """Admits a request of the user, who then has one more until `done`. Refuses as `identify`.

        in_batch: it is a line of a batch, which only the tokens of the day limit.
        """

    async def done(self, row: UsageRow, *, in_batch: bool = False) -> None:
        """Ends an admitted request and records its usage."""

    async def revocations(self, instance: str, position: int) -> Revocations:
        """Waits for changed credentials, at most some seconds."""

    async def login(self, name: str, password: str, address: str | None, device: str | None = None) -> Session:
        """Logs a user in. address: the client's, for the audit log. device: for the user's list of sessions.

        Refuses with `invalid_login`, `password_expired` or `too_many_logins`.
        """

    async def logout(self, secret: str, *, everywhere: bool) -> int:
        """Ends this session, or all of the user's. Returns how many ended."""

    async def change_password(
        self, secret: str, password: str, new: str, recovery_code: str | None = None, lose_saved: bool = False
    ) -> ChangedPassword:
        """Changes the password and ends all other sessions of the user. Refuses with `invalid_login`.

        After a reset, the recovery code opens what was saved before; with lose_saved that is deleted. With neither it
        refuses with `recovery_code_required`.
        """

    async def new_recovery_code(self, secret: str, password: str) -> str:
        """Replaces the user's recovery code. Refuses with `invalid_login` or `too_many_logins`."""

    async def limits_used(self, secret: str) -> LimitsUsed:
        """What the user's limits have been used of."""

    async def sessions(self, secret: str) -> Sequence[SessionInfo]:
        """The user's valid sessions, latest first."""

    async def end_session(self, secret: str, session_id: str) -> None:
        """Ends a session. Refuses with `not_found`, also if the session is another user's."""

    async def keys(self, secret: str) -> Sequence[KeyInfo]: ...

    async def add_key(self, secret: str, label: str, days: int | None) -> NewKey:
        """Makes an API key of the same user. days: how long it is valid; None: until it is revoked."""

    async def revoke_key(self, secret: str, key_id: str) -> None:
        """Revokes an API key. Refuses with `not_found`, also if the key is another user's."""

    async def conversation_key(self, secret: str, name: str | None) -> ConversationKey:
        """Returns the key of the user's conversation of that name, the same until it is forgotten.

        None: the default one.
        """

    async def forget(self, secret: str, name: str | None) -> Forgotten:
        """Destroys a conversation's key, or with None all of the user's. Refuses with `not_found`."""

    async def users(self, secret: str) -> Sequence[UserInfo]:
        """All users. This and all following methods refuse with `admin_only`."""

    async def add_user(self, secret: str, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo:
        """Adds a user; the password is for the first login. Refuses with `conflict` if the name exists."""

    async def change_user(self, secret: str, name: str, change: UserChange) -> UserInfo:
        """Changes a user; disabling ends the user's running requests. Refuses with `not_found`, `conflict`."""

    async def delete_user(self, secret: str, name: str) -> str:
        """Destroys the user's key and returns the folder of the user's pages. Refuses with `not_found`, `conflict`."""

    async def reset_password(self, secret: str, name: str, password: str) -> UserInfo:
        """Sets a password for the next login, at which the user's recovery code keeps what was saved."""

    async def usage(self, secret: str, first_day: str, last_day: str) -> Sequence[UsageRow]:
        """All users' usage, both days included."""

    async def usage_by_user(self, secret: str) -> Sequence[UserUsage]:
        """Usage of the last 30 days, of users that have any, ordered by id."""

    async def audit(self, secret: str, after: int, limit: int) -> AuditPage:
        """Returns rows of the audit log in order, from the one after `after`."""
