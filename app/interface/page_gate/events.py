"""Bounds the page's events in Gradio's queue, and drops those of a session that reads no results.

An event is one run of a function of the page. Its results wait for the session's event stream (`/queue/data`). Gradio
runs events whether or not their session ever reads them. Knows nothing of HTTP and of what the functions do.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from gradio.queueing import Queue
from gradio.utils import cancel_tasks

from app.interface import errors
from app.interface.places import Places

MOST_EVENTS = 128
"""Events of all sessions. Gradio runs 40 at a time; the others wait."""
MOST_EVENTS_OF_A_SESSION = 4
"""A browser's tab has one answer and the list of models."""
MOST_STREAMS_OF_A_SESSION = 2
"""A tab has one, and for a moment a second one when it reopens it."""
ABANDONED_AFTER_S = 5.0
"""How long a session's events stay while it has no stream open. A browser opens one right after its call."""


class Events:
    """The events of all sessions."""

    def __init__(self, queue: Queue, most_streams: int, retry_after_s: int) -> None:
        self._queue = queue
        self._streams = Places(most_streams)
        self._retry_after_s = retry_after_s
        self._streams_of: Counter[str] = Counter()
        self._joining: Counter[str] = Counter()
        self._drops: dict[str, asyncio.Task[None]] = {}

    @contextlib.contextmanager
    def joining(self, session: str) -> Iterator[None]:
        """While a session's event is put into the queue. Raises ApiError (503) if there are too many already."""
        pending = self._queue.pending_event_ids_session
        in_all = sum(map(len, pending.values())) + self._joining.total()
        of_session = len(pending.get(session, ())) + self._joining[session]
        if in_all >= MOST_EVENTS or of_session >= MOST_EVENTS_OF_A_SESSION:
            raise errors.unavailable(self._retry_after_s, "Too many calls of the page are waiting. Try again later.")
        self._joining[session] += 1
        try:
            yield
        finally:
            _less(self._joining, session)
            self._expect_stream(session)

    @contextlib.contextmanager
    def streaming(self, session: str) -> Iterator[None]:
        """While a session's event stream is open. Raises ApiError (404 if there are no events, 503 if too many are)."""
        if session not in self._queue.pending_messages_per_session:
            raise errors.ApiError(404, "This session has no events.")
        if self._streams_of[session] >= MOST_STREAMS_OF_A_SESSION:
            raise errors.unavailable(self._retry_after_s, "This session has its event stream already.")
        with self._streams.held(self._retry_after_s, "pages"):
            self._streams_of[session] += 1
            self._keep(session)
            try:
                yield
            finally:
                _less(self._streams_of, session)
                self._expect_stream(session)

    def _expect_stream(self, session: str) -> None:
        if self._streams_of[session] == 0:
            self._keep(session)
            self._drops[session] = asyncio.create_task(self._drop_later(session))

    def _keep(self, session: str) -> None:
        drop = self._drops.pop(session, None)
        if drop is not None:
            drop.cancel()

    async def _drop_later(self, session: str) -> None:
        """Ends the session's events and forgets their results."""
        await asyncio.sleep(ABANDONED_AFTER_S)
        del self._drops[session]
        queue = self._queue
        ids = queue.pending_event_ids_session.pop(session, set())
        events = [event for event in map(queue.event_ids_to_events.get, ids) if event is not None]
        await queue.clean_events(session_hash=session)
        await cancel_tasks({f"{session}_{event.fn._id}" for event in events})
        for event_id in ids:
            queue.event_ids_to_events.pop(event_id, None)
        if session not in queue.pending_event_ids_session:
            queue.pending_messages_per_session.pop(session, None)


def _less(counter: Counter[str], session: str) -> None:
    counter[session] -= 1
    if not counter[session]:
        del counter[session]
