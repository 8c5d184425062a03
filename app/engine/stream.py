"""The engine for asyncio: `async for bundle in engine.stream(request, reader="ingress-1")`.

The engine's thread wakes the event loop once per step, for all of its streams together. Tokens that a consumer has not
taken yet are joined into one bigger delta; no timer ever holds a token back. Closing a stream, or cancelling the task
that reads it, aborts its request.

A message costs many times what a token in it does. So the tokens that a step made for all requests of one reader (an
ingress) travel together, in one message (a `Bundle`) on one of their streams: the reader's *delivery stream*. An open
direct connection to the reader (a `Line`) replaces the delivery stream. A request's own stream always carries its first
tokens, its last, and everything beyond tokens: scores, embeddings, errors, prompt progress.

A worker cannot know whether the last messages of a delivery stream were read. Each request therefore keeps the tokens
that other streams have delivered for it since its own stream's last message. It resends them on its own stream when the
delivery stream ends, when they become many, and at its own end; the reader drops duplicates (`Assembler`).

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
from app.messages.outputs import Answer, FinishReason, PromptProgress, PromptResult, TokenDelta, TokenScores
from app.messages.requests import GenerateRequest

MAX_WAITING_TOKENS: Final = 32
"""The most tokens of one output that may wait for a delivery stream. With more, that stream counts as unread, and
another one takes over."""
MAX_RESENT_TOKENS: Final = 1024
"""The most tokens of one output that other streams deliver before its own stream resends them; as many are kept."""


class Line(Protocol):
    """A direct connection to a reader, beside its streams. Used on the event loop only (`app.messages.direct_line`)."""

    writable: bool
    """Whether it accepts more now."""
    on_writable: Callable[[], None]
    """Called when it accepts more again."""
    on_lost: Callable[[], None]
    """Called when it has ended, for whatever reason."""

    def send(self, bundle: Bundle) -> None:
        """Sends parts that have nothing but tokens."""

    def close(self) -> None: ...


class AsyncEngine:
    """Streams an engine's outputs to asyncio. Make and use it on one event loop."""

    def __init__(self, engine: Engine) -> None:
        """Others start and stop `engine`. Must be called with a running event loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._readers: dict[str, _Reader] = {}
        self._lines: dict[str, Line] = {}
        self._deliver = self._on_step  # one bound method, so that the engine sees one receiver

    async def stream(
        self, request: GenerateRequest, constraint: TokenConstraint | None = None, *, reader: str
    ) -> AsyncGenerator[Bundle, None]:
        """Yields parts of the request's output, and of others of the same reader; the request's last part ends it.

        reader: the name of the ingress that reads the stream. It must read all its streams all the time, or close them:
        a delivery stream that it leaves unread delays the others by MAX_WAITING_TOKENS tokens.

        Raises EngineError, as `Engine.submit` does, or later.
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

    def give_up(self, request_id: str, error: EngineError) -> None:
        """Ends a request: its stream raises the error after its tokens so far. Does nothing if it is unknown."""
        for reader in self._readers.values():
            for mailbox in reader.mailboxes:
                if mailbox.request_id == request_id and not mailbox.ended:
                    mailbox.put(error)
        self._engine.abort(request_id)

    def has_line(self, reader: str) -> bool:
        return reader in self._lines

    def attach(self, reader: str, line: Line) -> None:
        """Delivers the reader's tokens through `line`, which must be open, until it ends."""

        def lost() -> None:
            if self._lines.get(reader) is line:
                del self._lines[reader]
            streams = self._readers.get(reader)
            if streams is not None and isinstance(streams.delivery, _LineDelivery) and streams.delivery.line is line:
                streams.release(streams.delivery)

        line.on_lost = lost
        self._lines[reader] = line
        if (streams := self._readers.get(reader)) is not None:
            if streams.delivery is not None:
                streams.release(streams.delivery)
            streams.delivery = _LineDelivery(streams, line)

    def _reader(self, name: str) -> "_Reader":
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = _Reader()
            if (line := self._lines.get(name)) is not None:
                reader.delivery = _LineDelivery(reader, line)
        return reader

    def _on_step(self, events: Sequence[tuple[object, Event]]) -> None:
        """Passes events to the event loop, on the engine's thread. Raises RuntimeError if the loop is closed."""
        self._loop.call_soon_threadsafe(_put_events, events)


def _put_events(events: Sequence[tuple[object, Event]]) -> None:
    """Puts events into their mailboxes, on the event loop."""
    for mailbox, event in events:
        assert isinstance(mailbox, _Mailbox)
        mailbox.put(event)


class _Reader:
    """The open streams of one reader, and what delivers their tokens: a delivery stream, a direct line, or nothing."""

    __slots__ = ("delivery", "mailboxes")

    def __init__(self) -> None:
        self.mailboxes: set[_Mailbox] = set()
        self.delivery: _Mailbox | _LineDelivery | None = None
        """None: the next stream with something to send becomes the delivery stream."""

    def release(self, delivery: "_Mailbox | _LineDelivery") -> None:
        """Ends delivery by `delivery`; does nothing if another one delivers."""
        if self.delivery is delivery:
            self.delivery = None
            delivery.waiting.clear()
            for mailbox in self.mailboxes:
                mailbox.on_delivery_ended()


class _LineDelivery:
    """Sends a reader's waiting tokens on a direct line, in one message per turn of the event loop."""

    __slots__ = ("_reader", "_scheduled", "line", "waiting")

    def __init__(self, reader: _Reader, line: Line) -> None:
        self.line = line
        self.waiting: dict[_Mailbox, None] = {}
        """The mailboxes whose tokens wait for the next message, in order."""
        self._reader = reader
        self._scheduled = False
        line.on_writable = self.wake

    def wake(self) -> None:
        """Schedules a message for the event loop's next turn."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def on_backlog(self) -> None:
        """Handles a mailbox with too many waiting tokens: either no turn came yet, or the line accepts no more."""
        if self.line.writable:
            self._send()
        else:
            self._reader.release(self)
            self.line.close()

    def _send(self) -> None:
        self._scheduled = False
        if self.line.writable and self._reader.delivery is self:
            waiting, self.waiting = self.waiting, {}
            if bundle := tuple(mailbox.take_waiting() for mailbox in waiting if mailbox.waits_for(self)):
                self.line.send(bundle)


class _Mailbox:
    """One output's unsent tokens and events, for its own stream or its reader's delivery stream.

    It may itself be the delivery stream. Used on the event loop only.
    """

    __slots__ = (
        "_cached_tokens",
        "_delivered_by_others",
        "_error",
        "_finish_reason",
        "_more",
        "_must_resend",
        "_progress",
        "_prompt",
        "_reader",
        "_scores",
        "_sent_tokens",
        "_token_ids",
        "_waiter",
        "ended",
        "request_id",
        "waiting",
    )

    def __init__(self, request_id: str, reader: _Reader) -> None:
        self.ended = False
        """Whether the last part was taken."""
        self.waiting: dict[_Mailbox, None] = {}
        """On a delivery stream, the mailboxes whose tokens wait for its next message, in order."""
        self._reader = reader
        self.request_id = request_id
        self._token_ids: list[int] = []
        self._cached_tokens = 0
        self._scores: list[TokenScores] = []
        self._progress: PromptProgress | None = None
        self._prompt: PromptResult | None = None
        self._finish_reason: FinishReason | None = None
        self._more: tuple[Answer, ...] = ()
        self._error: EngineError | None = None
        self._sent_tokens = 0  # on the own stream
        self._delivered_by_others: list[int] = []  # tokens after those
        self._must_resend = False  # they may be lost, so the own stream repeats them
        self._waiter: asyncio.Future[None] | None = None
        reader.mailboxes.add(self)

    def put(self, event: Event) -> None:
        if self not in self._reader.mailboxes:  # it was closed after the step
            return
        if isinstance(event, EngineError):
            self._error = event
            self._must_resend = self._must_resend or bool(self._delivered_by_others)
        else:
            self._token_ids += event.token_ids
            self._finish_reason = event.finish_reason
            self._cached_tokens += event.cached_tokens
            self._more = event.more
            if event.scores is not None:
                self._scores.append(event.scores)
            if event.prompt is not None:
                self._prompt = event.prompt
            if event.progress is not None:
                self._progress = event.progress
        if len(self._token_ids) > MAX_WAITING_TOKENS and (delivery := self._delivery()) is not None:
            delivery.on_backlog()
        if not self._wait_for_delivery():
            self.wake()

    async def take(self) -> Bundle:
        """Waits for the stream's next message, at least one part; raises the error after the tokens before it."""
        while True:
            waiting, self.waiting = self.waiting, {}
            bundle = self._own_part() + tuple(mailbox.take_waiting() for mailbox in waiting if mailbox.waits_for(self))
            if bundle:
                return bundle
            if self._error is not None:
                raise self._error
            if self._token_ids:  # another stream has become the delivery stream meanwhile
                self._wait_for_delivery()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def close(self) -> bool:
        """Closes the stream. Returns whether it was its reader's last."""
        self._token_ids.clear()
        self._reader.mailboxes.discard(self)
        self._reader.release(self)
        return not self._reader.mailboxes

    def on_backlog(self) -> None:
        """Gives delivery up, because this stream is not read: another mailbox has too many tokens waiting for it."""
        self._reader.release(self)

    def on_delivery_ended(self) -> None:
        """Resends what the ended delivery stream or line has taken, because it may be lost."""
        self._must_resend = bool(self._delivered_by_others or self._token_ids)
        self.wake()

    def waits_for(self, delivery: "_Mailbox | _LineDelivery") -> bool:
        """Whether it has tokens that `delivery` is to send."""
        return bool(self._token_ids) and self._delivery() is delivery

    def take_waiting(self) -> Part:
        """Takes the waiting tokens, for a message of the delivery stream."""
        start = self._sent_tokens + len(self._delivered_by_others)
        part = Part(self.request_id, start, TokenDelta(tuple(self._token_ids)))
        self._delivered_by_others += self._token_ids
        self._token_ids.clear()
        return part

    def wake(self) -> None:
        """Makes `take` check again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _delivery(self) -> "_Mailbox | _LineDelivery | None":
        """The sender of the waiting tokens; None: the stream itself."""
        delivery = self._reader.delivery
        only_tokens = self._finish_reason is None and self._error is None and self._prompt is None and not self._scores
        if (
            delivery is self
            or not only_tokens
            or not self._sent_tokens
            or self._must_resend
            or len(self._delivered_by_others) >= MAX_RESENT_TOKENS
        ):
            return None
        return delivery

    def _wait_for_delivery(self) -> bool:
        """Hands waiting tokens to the delivery stream; returns False if the own stream must send them."""
        delivery = self._delivery()
        if delivery is None:
            return False
        delivery.waiting[self] = None
        delivery.wake()
        return True

    def _own_part(self) -> Bundle:
        """The own stream's next message, at most one part; it repeats tokens that others have delivered meanwhile."""
        last = self._finish_reason is not None and not self.ended
        has_news = self._token_ids or self._must_resend or self._progress
        if not last and (not has_news or self._delivery() is not None):
            return ()
        token_ids = (*self._delivered_by_others, *self._token_ids)
        scores = TokenScores.joined(self._scores) if self._scores else None
        delta = TokenDelta(
            token_ids, self._finish_reason, self._cached_tokens, scores, self._prompt, self._more, self._progress
        )
        part = Part(self.request_id, self._sent_tokens, delta)
        self._sent_tokens += len(token_ids)
        self._delivered_by_others.clear()
        self._token_ids.clear()
        self._scores.clear()
        self._cached_tokens = 0
        self._prompt = self._progress = None
        self._must_resend = False
        self.ended = last
        if last:
            self._reader.release(self)
        elif self._reader.delivery is None:
            self._reader.delivery = self
        return (part,)
