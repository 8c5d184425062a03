"""The settings of users: logins, limits, batches, what is stored."""

from pathlib import Path
from typing import Self

from pydantic import Field

from app.settings.knobs import Knobs


class LimitSettings(Knobs):
    """What one user may take, unless an administrator has set the user's own limits."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests that ask a worker, in any 60 seconds, over all ingress replicas; none: no limit."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Prompt and output tokens of a day in UTC; none: no limit. A request that begins below the limit may end above."""
    concurrent: int | None = Field(default=None, ge=1)
    """Requests of a user at the same time; none: no limit."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """The most that saved pages of a user take. 0: none are saved; none: `memory.bytes_per_user` holds."""


class BatchSettings(Knobs):
    """Users' batches of requests, computed when nobody else asks, and the files with their lines and results."""

    file_bytes: int = Field(default=100 << 20, ge=1024)
    """The largest file that a user may upload."""
    bytes_per_user: int = Field(default=1 << 30, ge=0)
    """The most that one user's files take, encrypted: those uploaded and those with results. 0: there are none. A batch
    whose results find no room waits until its user deletes a file."""
    lines: int = Field(default=50_000, ge=1, le=1_000_000)
    """The most lines of a batch."""
    batches_per_user: int = Field(default=16, ge=1)
    """The most batches of a user that have not ended."""
    hours: int = Field(default=24, ge=1, le=24 * 365)
    """How long a batch may take. Then it is `expired`, with the results that it has."""
    days: int = Field(default=30, ge=1)
    """How long files are kept, unless their user says otherwise, and batches after their time."""
    lines_at_once: int = Field(default=32, ge=1, le=4096)
    """The most lines that an ingress replica has at the workers at the same time, of all users' batches."""


class AccountsSettings(Knobs):
    """Users, who log in or send an API key of their own. Without this section there are none."""

    database: str = Field(min_length=1)
    """The file of SQLite's database, which `redoubt user add --config` makes; or, for a cluster, the URL of a Postgres
    without a password, such as `postgresql+psycopg://redoubt@db.internal/redoubt` (libpq reads PGPASSFILE)."""
    key: str = Field(pattern=r"^(file|cdh):.")
    """Where the server's own key is: `file:<path>` (`redoubt keygen` makes one), or in a confidential guest
    `cdh:<repository>/<type>/<tag>`. Without that key nothing in the database opens."""
    guests: bool = False
    """Serve requests without a key or login too; guests share their cached pages, and no limit of a user's holds."""
    session_idle_s: int = Field(default=14 * 86_400, ge=60)
    """A session ends when it was not used for so long."""
    session_max_s: int = Field(default=90 * 86_400, ge=60)
    """A session ends so long after its login."""
    revocation_s: float = Field(default=5.0, gt=0, le=60)
    """The longest time for which an ingress goes on to accept a credential that was revoked."""
    login_failures: int = Field(default=5, ge=1)
    """Wrong passwords for one name in a quarter of an hour, after which logins with that name are refused (429)."""
    first_password_days: int = Field(default=7, ge=1)
    """How long a password holds that an administrator has set for the first login."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Of every user without limits of the user's own."""
    stored_bytes_per_user: int = Field(default=256 << 20, ge=0)
    """The most that one user's stored conversations and responses take, encrypted. 0: nothing is stored."""
    batches: BatchSettings = Field(default_factory=BatchSettings)
    """Of every user."""
    responses_days: int = Field(default=30, ge=1)
    """How long a response that is in no conversation is stored."""
    audit_addresses_days: int = Field(default=90, ge=0)
    """How long the audit tells from which address a login came, or was refused. 0: never."""

    def at_absolute_paths(self) -> Self:
        """The same for a process that runs in another folder."""
        changes: dict[str, str] = {}
        if "://" not in self.database:
            changes["database"] = str(Path(self.database).absolute())
        if self.key.startswith("file:"):
            changes["key"] = f"file:{Path(self.key.removeprefix('file:')).absolute()}"
        return self.model_copy(update=changes)
