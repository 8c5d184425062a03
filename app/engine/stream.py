"""The engine for asyncio: `async for bundle in engine.stream(request, reader="ingress-1")`.

The engine's thread wakes an event loop once per step, for all of its streams together. What a consumer has not taken
yet grows into one bigger delta; no timer ever holds a token back. Closing a stream, or cancelling the task that reads
it, aborts its request.

Streams of one reader share messages: one of them, the carrier, brings the others' tokens with its own (`bundle`); or a
line to that reader beside its streams does so for all. A stream's first tokens, its last, and whatever is more than
tokens, go on the stream itself. Whether a carrier's last messages were read nobody knows; when it ends, the others say
on their own streams what it has carried for them.

Knows nothing of text, HTTP or Ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Protocol

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.model_runner import TokenConstraint
from app.messages.bundle import Bundle, Part
from app.messages.failures import EngineError
from app.messages.outputs import Answer, FinishReason, PromptResult, TokenDelta, TokenScores
from app.messages.requests import GenerateRequest

MOST_WAITING: Final = 32
"""Tokens of one output that wait for a carrier. One that takes no more is left unread, and another carries."""
MOST_CARRIED: Final = 1024
"""Tokens of one output that carriers bring before they are said again on its own stream: what is kept for that."""


class Line(Protocol):
    """A way to a reader beside its streams; used on the event loop only (`app.direct_line`)."""

    writable: bool
    """Whether it takes more now."""
    on_writable: Callable[[], None]
    """To be called when it does again."""
    on_lost: Callable[[], None]
    """To be called when it has ended, in whatever way."""

    def send(self, bundle: Bundle) -> None:
        """Parts that are tokens only."""

    def close(self) -> None:
        """Ends it."""


class AsyncEngine:
    """An engine's streams on one event loop: make it, and use it, on that loop."""

    def __init__(self, engine: Engine) -> None:
        """Uses `engine`, which others start and stop. Must be called with a running event loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._readers: dict[str, _Reader] = {}
        self._lines: dict[str, Line] = {}
        self._deliver = self._on_step  # one bound method, so that the engine sees one receiver

    async def stream(
        self, request: GenerateRequest, constraint: TokenConstraint | None = None, *, reader: str
    ) -> AsyncGenerator[Bundle, None]:
        """Yields parts of the request's output, and of others of the same reader; the request's last one ends it.

        reader: names who reads several streams and tells their parts apart. It is to read all of them all the time, or
        close them: a carrier that it leaves unread holds up the others for MOST_WAITING tokens. Raises EngineError, as
        `submit` does or later.
        """
        mailbox = _Mailbox(request.request_id, self._reader(reader))
        ended = False
        try:
            self._engine.submit(request, self._deliver, mailbox, constraint)
            while not ended:
                bundle = await mailbox.take()
                ended = mailbox.ended
                yield bundle
        except EngineError:
            ended = True
            raise
        finally:
            if mailbox.close():
                self._readers.pop(reader, None)
            if not ended:
                self._engine.abort(request.request_id)

    def has_line(self, reader: str) -> bool:
        """Whether a line to that reader is open."""
        return reader in self._lines

    def attach(self, reader: str, line: Line) -> None:
        """From now on `line`, which must not have ended, carries the reader's tokens, until it ends."""

        def lost() -> None:
            if self._lines.get(reader) is line:
                del self._lines[reader]
            its = self._readers.get(reader)
            if its is not None and isinstance(its.carrier, _LineCarrier) and its.carrier.line is line:
                its.release(its.carrier)

        line.on_lost = lost
        self._lines[reader] = line
        if (its := self._readers.get(reader)) is not None:
            if its.carrier is not None:
                its.release(its.carrier)
            its.carrier = _LineCarrier(its, line)

    def _reader(self, name: str) -> "_Reader":
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = _Reader()
            if (line := self._lines.get(name)) is not None:
                reader.carrier = _LineCarrier(reader, line)
        return reader

    def _on_step(self, events: Sequence[tuple[object, Event]]) -> None:
        """On the engine's thread. Raises RuntimeError if the loop is closed: the engine then aborts the requests."""
        self._loop.call_soon_threadsafe(_sort, events)


def _sort(events: Sequence[tuple[object, Event]]) -> None:
    """On the event loop."""
    for mailbox, event in events:
        assert isinstance(mailbox, _Mailbox)
        mailbox.put(event)


class _Reader:
    """The open streams of one reader, and who carries: one of them, or a line."""

    __slots__ = ("carrier", "mailboxes")

    def __init__(self) -> None:
        self.mailboxes: set[_Mailbox] = set()
        self.carrier: _Mailbox | _LineCarrier | None = None

    def release(self, carrier: "_Mailbox | _LineCarrier") -> None:
        """The carrier's place is free, if it was this one's."""
        if self.carrier is carrier:
            self.carrier = None
            carrier.riders.clear()
            for mailbox in self.mailboxes:
                mailbox.carrier_is_gone()


class _LineCarrier:
    """Brings by a line what waits in a reader's mailboxes, all that has come in one turn of the loop together."""

    __slots__ = ("_due", "_reader", "line", "riders")

    def __init__(self, reader: _Reader, line: Line) -> None:
        self.riders: dict[_Mailbox, None] = {}  # whose tokens wait for the next message, in order
        self._reader = reader
        self.line = line
        self._due = False
        line.on_writable = self.wake

    def wake(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send)

    def hurry(self) -> None:
        """Tokens have waited long: it had no turn yet, or it takes no more."""
        if self.line.writable:
            self._send()
        else:
            self._reader.release(self)
            self.line.close()

    def _send(self) -> None:
        self._due = False
        if self.line.writable and self._reader.carrier is self:
            riders, self.riders = self.riders, {}
            if bundle := tuple(rider.ride() for rider in riders if rider.rides_on(self)):
                self.line.send(bundle)


class _Mailbox:
    """What of one output its reader was not told yet. Used on the event loop only."""

    __slots__ = (
        "_cached_tokens",
        "_carried",
        "_error",
        "_finish_reason",
        "_more",
        "_prompt",
        "_reader",
        "_request_id",
        "_scores",
        "_token_ids",
        "_told",
        "_unsure",
        "_waiter",
        "ended",
        "riders",
    )

    def __init__(self, request_id: str, reader: _Reader) -> None:
        self.ended = False
        """Whether the last part was taken."""
        self._reader = reader
        self._request_id = request_id
        self._token_ids: list[int] = []
        self._cached_tokens = 0
        self._scores: list[TokenScores] = []
        self._prompt: PromptResult | None = None
        self._finish_reason: FinishReason | None = None
        self._more: tuple[Answer, ...] = ()
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._told = 0  # tokens, on the own stream
        self._carried: list[int] = []  # tokens after those, by carriers
        self._unsure = False  # whether they were read, or will be taken: the next message is the own stream's
        self.riders: dict[_Mailbox, None] = {}  # of a carrier: whose tokens wait for its next message, in order
        reader.mailboxes.add(self)

    def put(self, event: Event) -> None:
        if self not in self._reader.mailboxes:  # it was closed after the step
            return
        if isinstance(event, EngineError):
            self._error = event
            self._unsure = self._unsure or bool(self._carried)
        else:
            self._token_ids += event.token_ids
            self._finish_reason = event.finish_reason
            self._cached_tokens += event.cached_tokens
            self._more = event.more
            if event.scores is not None:
                self._scores.append(event.scores)
            if event.prompt is not None:
                self._prompt = event.prompt
        if len(self._token_ids) > MOST_WAITING and (carrier := self._carrier()) is not None:
            carrier.hurry()
        if not self._board():
            self.wake()

    async def take(self) -> Bundle:
        """All since the last call, at least one part; raises the error once the tokens are taken."""
        while True:
            riders, self.riders = self.riders, {}
            bundle = self._own() + tuple(rider.ride() for rider in riders if rider.rides_on(self))
            if bundle:
                return bundle
            if self._error is not None:
                raise self._error
            if self._token_ids:  # another has become the carrier since they came
                self._board()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def close(self) -> bool:
        """The stream is not read any more. Says whether it was its reader's last."""
        self._token_ids.clear()
        self._reader.mailboxes.discard(self)
        self._reader.release(self)
        return not self._reader.mailboxes

    def hurry(self) -> None:
        """Tokens have waited long: its stream is not read, and somebody else is to carry."""
        self._reader.release(self)

    def carrier_is_gone(self) -> None:
        """Nobody knows whether what it took along was read."""
        self._unsure = bool(self._carried or self._token_ids)
        self.wake()

    def _carrier(self) -> "_Mailbox | _LineCarrier | None":
        """Who brings the tokens that wait here; None: the own stream."""
        carrier = self._reader.carrier
        plain = self._finish_reason is None and self._error is None and self._prompt is None and not self._scores
        if carrier is self or not plain or not self._told or self._unsure or len(self._carried) >= MOST_CARRIED:
            return None
        return carrier

    def _own(self) -> Bundle:
        """What the own stream is to say now: a part or none."""
        last = self._finish_reason is not None and not self.ended
        if not last and (not (self._token_ids or self._unsure) or self._carrier() is not None):
            return ()
        token_ids = (*self._carried, *self._token_ids)
        scores = TokenScores.joined(self._scores) if self._scores else None
        delta = TokenDelta(token_ids, self._finish_reason, self._cached_tokens, scores, self._prompt, self._more)
        part = Part(self._request_id, self._told, delta)
        self._told += len(token_ids)
        self._carried.clear()
        self._token_ids.clear()
        self._scores.clear()
        self._cached_tokens = 0
        self._prompt = None
        self._unsure = False
        self.ended = last
        if last:
            self._reader.release(self)
        elif self._reader.carrier is None:
            self._reader.carrier = self
        return (part,)

    def _board(self) -> bool:
        """Gives what waits to the carrier, if that is the one to bring it."""
        carrier = self._carrier()
        if carrier is None:
            return False
        carrier.riders[self] = None
        carrier.wake()
        return True

    def rides_on(self, carrier: "_Mailbox | _LineCarrier") -> bool:
        """Whether its tokens still wait for that one."""
        return bool(self._token_ids) and self._carrier() is carrier

    def ride(self) -> Part:
        """What waits, for the carrier's next message."""
        part = Part(self._request_id, self._told + len(self._carried), TokenDelta(tuple(self._token_ids)))
        self._carried += self._token_ids
        self._token_ids.clear()
        return part

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
