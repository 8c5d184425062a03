"""What the scheduler needs of what brings pages that the prefix cache lacks (`app/engine/memory/loads.py`)."""

from typing import Protocol

from app.engine.scheduling.sequence import SequenceState


class PageLoader(Protocol):
    """Used between two steps, on the engine's thread."""

    def begin(self, sequence: SequenceState, end: int) -> bool:
        """Whether it looks for the sequence's next pages, those before page `end`.

        If so the sequence is `loading` and plans nothing, until the loader calls `Scheduler.end_load`.
        """

    def cancel(self, sequence: SequenceState) -> None:
        """Ends the load of a loading sequence; nothing is written to its pages any more, and they are free."""
