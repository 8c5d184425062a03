"""Collects a step's events and delivers them beside the next step, in a thread of its own.

Each receiver is called once per step, with all of its events, and one step after another. So no receiver, and no thread
that it wakes, takes the interpreter's lock from the engine's thread between two steps.

Knows nothing of what the events mean, nor of what becomes of a request whose receiver fails.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from app.engine.generation import Deliver, Event, Generation
from app.messages.outputs import TokenDelta

logger = logging.getLogger(__name__)

_Step = dict[Deliver, list[tuple[Generation, Event | int]]]


class Outbox:
    """The events of the current step, and those on their way. Used by one thread at a time.

    The events of a request that is aborted meanwhile are dropped.
    """

    def __init__(self, on_failure: Callable[[Deliver], None]) -> None:
        """on_failure: called with a receiver that has raised an exception, before its next events are delivered."""
        self._on_failure = on_failure
        self._events: _Step = {}
        self._handed: SimpleQueue[_Step | None] = SimpleQueue()
        """Steps for the thread; None ends it."""
        self._delivered: SimpleQueue[None] = SimpleQueue()
        """An entry once the thread may be given another step."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Delivers beside the caller, until `close`. Before and after that, `flush` delivers by itself."""
        self._thread = threading.Thread(target=self._main, name="redoubt-delivery", daemon=True)
        self._delivered.put(None)
        self._thread.start()

    def add(self, generation: Generation, event: Event | int) -> None:
        """Adds an event. An integer stands for a delta of one token and nothing else."""
        events = self._events.get(generation.deliver)
        if events is None:
            events = self._events[generation.deliver] = []
        events.append((generation, event))

    def flush(self) -> None:
        """Sends the events on their way, once those of the step before are delivered."""
        if not self._events:
            return
        events, self._events = self._events, {}
        if self._thread is None:
            self._deliver(events)
        else:
            self._delivered.get()
            self._handed.put(events)

    def close(self) -> None:
        """Delivers what is left and ends the thread."""
        self.flush()
        if self._thread is not None:
            self._handed.put(None)
            self._thread.join()
            self._thread = None

    def _main(self) -> None:
        while (step := self._handed.get()) is not None:
            self._deliver(step)
            self._delivered.put(None)

    def _deliver(self, step: _Step) -> None:
        for deliver, events in step.items():
            present = [
                (generation.key, TokenDelta((event,)) if isinstance(event, int) else event)
                for generation, event in events
                if not generation.aborted
            ]
            if not present:
                continue
            try:
                deliver(present)
            except Exception:
                logger.exception("a receiver of tokens has failed; its requests are aborted")
                self._on_failure(deliver)
