"""What an ingress and the accounts say to each other. Frozen and picklable; secrets and keys stay out of every repr."""

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
    """Why the accounts refuse something, in words for the user."""

    code: RefusalCode
    message: str
    param: str | None = None
    """The field that is wrong."""
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
        """The error that the refusal tells of."""
        return cls(refusal.code, refusal.message, param=refusal.param, retry_after_s=refusal.retry_after_s)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What one user may take; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Prompt and output tokens of a day in UTC. A request that begins below the limit may end above it."""
    concurrent: int | None = None
    """Requests at the same time."""
    memory_bytes: int | None = None
    """Saved pages."""

    def or_else(self, defaults: "UserLimits") -> "UserLimits":
        """These, and the defaults where there is none."""
        return UserLimits(
            *(
                getattr(defaults, name) if getattr(self, name) is None else getattr(self, name)
                for name in UserLimits.__slots__
            )
        )


@dataclass(frozen=True, slots=True)
class PageKeys:
    """What a user's saved pages are found and opened with, whatever the conversation."""

    owner: str
    """The folder of the user's pages: 32 hex digits."""
    names_key: bytes = field(repr=False)
    shared_key: bytes = field(repr=False)
    """SK: for pages of system prompt and tools."""
    shared_key_id: bytes


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """A conversation of a user's, and what its saved pages are opened with."""

    conversation_id: str
    key: bytes = field(repr=False)
    """CK."""
    key_id: bytes


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What opens some of a user's saved pages is destroyed; the files are still there."""

    conversations: int
    key_id: bytes | None
    """Of the key that was destroyed; None: all of the user's were."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a credential stands for."""

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
    """The user's stored conversations and responses are sealed under it."""
    must_choose_password: bool = False
    """An administrator has set the present one: until the user chooses another, nothing else is served, and all keys
    here open nothing."""
    can_recover: bool = False
    """Where a password is to be chosen: whether a recovery code opens what was saved before."""


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
    """An API key as it is shown once."""

    info: KeyInfo
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user as administrators see one: nothing of what was said."""

    id: str
    name: str
    role: Role
    state: State
    created: int
    limits: UserLimits
    """The user's own; the service's defaults hold where there is none."""
    first_password_expires: int | None = None
    """Until when the administrator's password is good for the first login; None: the user has chosen another."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One of a user's sessions; its token is known to whoever logged in alone."""

    id: str
    created: int
    """Unix seconds; so are the next two."""
    seen: int
    """Its last use, to within some minutes."""
    expires: int
    is_current: bool
    """Whether it is the one that asks."""


@dataclass(frozen=True, slots=True)
class ChangedPassword:
    """What a user is told who has changed the password."""

    recovery_code: str | None = field(default=None, repr=False)
    """A new one, after a password that an administrator had set. It is shown this once, to nobody else."""
    memory_lost: bool = False
    """Whether what was saved for the user can no longer be opened."""
    lost_folder: str | None = None
    """The folder of those pages: 32 hex digits."""


@dataclass(frozen=True, slots=True)
class UserChange:
    """What an administrator changes of a user; None: nothing."""

    role: Role | None = None
    state: State | None = None
    limits: UserLimits | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What a user took in a day, with one credential and one model."""

    user_id: str
    credential: str
    day: str
    """UTC, as 2026-01-31."""
    model: str
    requests: int
    prompt: int
    """Prompt tokens; those of a prompt with several choices once."""
    cached: int
    """Those of them that the prefix cache had."""
    output: int


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """What somebody took in some days, with all credentials and models; as in UsageRow."""

    requests: int
    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class UserUsage:
    """What a user took: of days in UTC, the present one included."""

    user_id: str
    today: UsageCounts
    days_7: UsageCounts
    days_30: UsageCounts


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What somebody did; it tells nothing of what was said."""

    seq: int
    at: int
    """Unix seconds."""
    actor: str
    """A user's id, "operator" (the command line on the server's own machine) or "unknown"."""
    action: str
    object: str
    outcome: str
    address: str | None = None
    """Of a login's client; None also where it is not known, or forgotten."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A part of the audit."""

    rows: Sequence[AuditRow]
    intact: bool
    """Whether nobody has changed, taken out or cut off a row of the whole audit."""
    last: int
    """The number of the newest row there is; 0: none."""


@dataclass(frozen=True, slots=True)
class RateState:
    """How much of a user's limits is left, for `x-ratelimit-*` headers; None: no such limit."""

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
    """Whose credentials have changed since the last call."""

    instance: str
    """Another one than before: the accounts have started again, and nothing that was known of them holds."""
    position: int
    """Where the next call goes on."""
    subjects: frozenset[str] | None
    """Ids of users and credentials; None: anybody's may have."""


class AccountsClient(Protocol):
    """The accounts, as an ingress calls them. Every method raises AccountsError; `secret` is a key or session token."""

    async def identify(self, secret: str) -> Identity:
        """Whose it is. Refuses with `invalid_api_key` or `session_expired`."""

    async def admit(self, secret: str) -> Admission:
        """Counts one more request of the user until `done`, unless it is refused. Refuses as `identify`."""

    async def done(self, row: UsageRow) -> None:
        """One request less, and what it took."""

    async def revocations(self, instance: str, position: int) -> Revocations:
        """Waits for changes, at most some seconds."""

    async def login(self, name: str, password: str, address: str | None) -> Session:
        """address: the client's, for the audit.

        Refuses with `invalid_login`, `password_expired` or `too_many_logins`.
        """

    async def logout(self, secret: str, *, everywhere: bool) -> int:
        """Ends this session, or all of the user's; how many ended."""

    async def change_password(
        self, secret: str, password: str, new: str, recovery_code: str | None = None, lose_saved: bool = False
    ) -> ChangedPassword:
        """Ends all other sessions of the user. Refuses with `invalid_login`.

        After a reset the recovery code opens what was saved before. lose_saved: it is lost, and all of that is deleted;
        with neither it is refused (`recovery_code_required`).
        """

    async def new_recovery_code(self, secret: str, password: str) -> str:
        """In place of the user's one so far. Refuses with `invalid_login` or `too_many_logins`."""

    async def sessions(self, secret: str) -> Sequence[SessionInfo]:
        """The user's sessions that hold, the latest first."""

    async def end_session(self, secret: str, session_id: str) -> None:
        """Refuses with `not_found`, also where the session is another user's."""

    async def keys(self, secret: str) -> Sequence[KeyInfo]:
        """The user's API keys."""

    async def add_key(self, secret: str, label: str, days: int | None) -> NewKey:
        """A key of the same user. days: how long it holds; None: until it is revoked."""

    async def revoke_key(self, secret: str, key_id: str) -> None:
        """Refuses with `not_found`, also where the key is another user's."""

    async def conversation_key(self, secret: str, name: str | None) -> ConversationKey:
        """The key of the user's conversation of that name, always the same until it is forgotten; None: the default."""

    async def forget(self, secret: str, name: str | None) -> Forgotten:
        """Destroys a conversation's key, or with None all of the user's. Refuses with `not_found`."""

    async def users(self, secret: str) -> Sequence[UserInfo]:
        """Everybody. This and all that follow refuse with `admin_only`."""

    async def add_user(self, secret: str, name: str, password: str, role: Role, limits: UserLimits) -> UserInfo:
        """The password is for the first login. Refuses with `conflict` if there is one of that name."""

    async def change_user(self, secret: str, name: str, change: UserChange) -> UserInfo:
        """Disabling ends the user's running requests. Refuses with `not_found`, `conflict`."""

    async def delete_user(self, secret: str, name: str) -> str:
        """Destroys what opens the user's key; the folder of the user's pages. Refuses with `not_found`, `conflict`."""

    async def reset_password(self, secret: str, name: str, password: str) -> UserInfo:
        """The password is for the next login, at which the user's recovery code keeps what was saved."""

    async def usage(self, secret: str, first_day: str, last_day: str) -> Sequence[UsageRow]:
        """Everybody's, these days included."""

    async def usage_by_user(self, secret: str) -> Sequence[UserUsage]:
        """Of whoever took anything in the last 30 days, in the order of ids."""

    async def audit(self, secret: str, after: int, limit: int) -> AuditPage:
        """Rows in order, from the one after `after`."""
