"""Users' files and batches, as messages between an ingress and the accounts. Frozen and picklable.

The ingress seals every text under a key of the user's before it hands it over, in parts of bounded size: the accounts
and Ray see ids, sizes, times, counts and states, and no text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

UploadPurpose = Literal["batch", "user_data", "assistants"]
FilePurpose = Literal[UploadPurpose, "batch_output"]
DOCUMENT_PURPOSES: Final = ("user_data", "assistants")
"""Of files that questions are about; both mean the same."""
BatchState = Literal[
    "validating", "in_progress", "finalizing", "cancelling", "failed", "completed", "expired", "cancelled"
]
OPEN_STATES: Final = ("validating", "in_progress", "finalizing", "cancelling")
"""The states of a batch that has not ended."""
LEASE_S: Final = 10
"""How long an ingress has a batch that it has claimed, unless it asks for it again."""
PART_BYTES: Final = 1 << 20
"""The most of a file in one part, but for a single result, which is a part of its own."""
LAST_SEQ: Final = 1 << 40
"""In a file of results the number of a part is its line's; those written at the end, for lines that never ran, begin
here."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A complete file without its content."""

    id: str
    purpose: FilePurpose
    created: int
    """Unix seconds; so is `expires`."""
    expires: int | None
    """None: it is kept until it is deleted."""
    parts: int
    sealed_bytes: int
    """Of all sealed parts."""
    sealed: bytes = field(repr=False)
    """Its sealed name."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file's content."""

    seq: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to begin. The ingress chooses the ids, of its files of results too."""

    id: str
    input_id: str
    output_id: str
    error_id: str
    sealed: bytes = field(repr=False)
    """What was asked for."""
    output_seconds: int | None = None
    """How long its files of results are kept; None: as long as the settings say."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch."""

    id: str
    created: int
    """Unix seconds; so is `expires`."""
    expires: int
    state: BatchState
    input_id: str
    output_id: str
    error_id: str
    has_output: bool
    """Whether the file of `output_id` can be read; only after the end. So is the next one."""
    has_errors: bool
    total: int
    """Lines; 0 until they were checked."""
    completed: int
    failed: int
    times: Mapping[str, int]
    """When it came into each state."""
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """A batch that this ingress is to run, with a credential of its user that was seen since the accounts started."""

    batch: StoredBatch
    claim: int
    """The number of this claim, which each of its calls carries: one that a later claim has overtaken is refused."""
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LineResult:
    """What came of a line of a batch."""

    seq: int
    """The line's number; or from `LAST_SEQ` on: many lines that never ran."""
    is_error: bool
    sealed: bytes = field(repr=False)


class BatchStore(Protocol):
    """The ingress' interface to users' files and batches.

    Every method raises AccountsError; `secret` is a key or session token, and ids of other users are `not_found`. All
    may be called again when an answer is lost: ids and numbers are the caller's.
    """

    async def new_file(self, secret: str, file_id: str) -> None:
        """Begins a file, which nobody finds before `finish_file`. Refuses with `insufficient_quota`."""

    async def add_part(self, secret: str, file_id: str, part: FilePart) -> None:
        """Adds a part to an unfinished file. Refuses with `insufficient_quota`, and with `not_found` after hours."""

    async def finish_file(
        self, secret: str, file_id: str, sealed: bytes, seconds: int | None, purpose: UploadPurpose
    ) -> StoredFile:
        """Completes a file. seconds: how long it is kept; None: as long as the settings say, documents for ever."""

    async def files(
        self, secret: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[StoredFile]:
        """Lists complete files. after: the id of the one before the first."""

    async def file(self, secret: str, file_id: str) -> StoredFile: ...

    async def parts(self, secret: str, file_id: str, after: int) -> Sequence[FilePart]:
        """Returns the next parts after number `after` (-1: the first), about `PART_BYTES`; empty: there is none."""

    async def delete_file(self, secret: str, file_id: str) -> None:
        """Deletes a file, finished or not. Refuses with `conflict` while a batch reads it."""

    async def new_batch(self, secret: str, batch: NewBatch) -> StoredBatch:
        """Begins a batch. Refuses with `insufficient_quota`, and `not_found` if there is no such input file."""

    async def batches(self, secret: str, *, after: str | None, limit: int) -> Sequence[StoredBatch]:
        """Lists batches, newest first."""

    async def batch(self, secret: str, batch_id: str) -> StoredBatch: ...

    async def cancel_batch(self, secret: str, batch_id: str) -> StoredBatch:
        """Has a batch end. Refuses with `conflict` if it has ended, or is about to."""

    async def claim_batches(self, most: int) -> Sequence[ClaimedBatch]:
        """Gives this ingress batches that no ingress has, for `LEASE_S`. Waits some seconds while none could run.

        Only those of users of whom a credential is known: others wait until one is seen. The following methods refuse
        with `conflict` if another ingress has the batch by now, or is to have it.
        """

    async def keep_batch(self, secret: str, batch_id: str, claim: int) -> StoredBatch:
        """Prolongs the lease. Returns the batch, which its user may have cancelled."""

    async def leave_batch(self, secret: str, batch_id: str, claim: int) -> None:
        """Ends the lease, so that another ingress goes on."""

    async def start_batch(self, secret: str, batch_id: str, claim: int, total: int, sealed: bytes) -> StoredBatch:
        """Its lines are right: `validating` becomes `in_progress`."""

    async def done_lines(self, secret: str, batch_id: str, after: int) -> Sequence[int]:
        """Returns the next numbers of lines that have a result, after line `after`; empty: there are no more."""

    async def add_results(self, secret: str, batch_id: str, claim: int, results: Sequence[LineResult]) -> StoredBatch:
        """Stores results; of a line that has one already it stays. Prolongs the lease.

        Refuses with `insufficient_quota`, but for those from `LAST_SEQ` on.
        """

    async def finalize_batch(self, secret: str, batch_id: str, claim: int) -> StoredBatch:
        """No more lines run: `in_progress` becomes `finalizing`. Deletes results from `LAST_SEQ` on."""

    async def end_batch(
        self, secret: str, batch_id: str, claim: int, state: BatchState, sealed: bytes, names: tuple[bytes, bytes]
    ) -> StoredBatch:
        """Ends the batch and completes its files of results. names: the sealed names of output and errors."""
