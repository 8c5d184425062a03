"""Collects a step's events and calls each receiver once per step, with all of its events.

Knows nothing of what the events mean, nor of what becomes of a request whose receiver fails.
"""

import logging

from app.engine.generation import Deliver, Event, Generation

logger = logging.getLogger(__name__)


class Outbox:
    """The events of the current step. Only the engine's thread uses it."""

    def __init__(self) -> None:
        self._events: dict[Deliver, list[tuple[object, Event]]] = {}

    def add(self, generation: Generation, event: Event) -> None:
        events = self._events.get(generation.deliver)
        if events is None:
            events = self._events[generation.deliver] = []
        events.append((generation.key, event))

    def flush(self) -> list[Deliver]:
        """Calls each receiver with its events, in order. Returns the receivers that raised an exception."""
        failed: list[Deliver] = []
        for deliver, events in self._events.items():
            try:
                deliver(events)
            except Exception:
                logger.exception("a receiver of tokens has failed; its requests are aborted")
                failed.append(deliver)
        self._events.clear()
        return failed
