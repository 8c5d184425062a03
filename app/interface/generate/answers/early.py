"""What a stream says before its request is planned, if reading its files or searching takes long.

Nothing is sent before that: what fails soon has its own HTTP status. It knows no family's format.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from app.interface.request.errors import ApiError


@dataclass(frozen=True, slots=True)
class Opened:
    """What a stream has said before its answer was planned."""

    events: int
    """How many events it has had."""
    created: int
    """When the answer was made according to them, in Unix seconds."""


class Early(Protocol):
    """The beginning of one stream."""

    @property
    def is_searching(self) -> bool:
        """Whether a search has begun, of which the client is told if it takes long."""

    @property
    def opened(self) -> Opened | None:
        """What was said; None: nothing."""

    def searching(self, search_id: str | None) -> None:
        """Notes that a search begins. search_id: of its item; None: it has ended."""

    def begin(self) -> bytes:
        """Returns the events that the stream opens with, if any. Called once."""

    def fail(self, error: ApiError) -> bytes:
        """Returns the events that end the stream."""


class Silent:
    """The beginning of a stream that says nothing before its answer."""

    is_searching = False
    opened = None

    def __init__(self, failed: Callable[[ApiError], bytes]) -> None:
        """failed: writes an error's event."""
        self._failed = failed

    def searching(self, search_id: str | None) -> None:
        """Does nothing: its family has no search."""

    def begin(self) -> bytes:
        return b""

    def fail(self, error: ApiError) -> bytes:
        return self._failed(error)
