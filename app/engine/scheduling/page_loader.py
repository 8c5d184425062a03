"""The scheduler's interface to a loader of pages that the prefix cache lacks (`app/engine/memory/loads.py`)."""

from typing import Protocol

from app.engine.scheduling.sequence import SequenceState


class PageLoader(Protocol):
    """Loads pages for sequences. The engine's thread calls it between two steps."""

    def begin(self, sequence: SequenceState, end: int) -> bool:
        """Starts to load the sequence's next pages, up to page `end`; returns False if it does not.

        If it does, the sequence is `loading` and is not scheduled until the loader calls `Scheduler.end_load`.
        """

    def cancel(self, sequence: SequenceState) -> None:
        """Ends the sequence's load: nothing is written to its pages any more, and they are free."""
