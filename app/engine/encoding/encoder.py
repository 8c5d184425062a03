"""The engine of an encoder: one thread that turns texts into vectors or scores, a batch at a time.

A batch has texts of several requests, one after another without padding. It is computed in pieces, each in a turn of
its own, so that a model on the same cores waits for a piece at most. Knows nothing of text, HTTP, asyncio or Ray.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.encoding.head import F32, Head
from app.engine.encoding.pieces import Piece, Pieces
from app.engine.encoding.text_queue import Job, TextQueue
from app.messages.failures import EngineError, EngineFailedError, EngineStoppedError, InvalidRequestError
from app.messages.requests import GenerateRequest, Priority, Texts

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Batches that fail one after another, after which the engine stops."""

I32 = NDArray[np.int32]


class EncoderModel(Protocol):
    """A loaded encoder. Used by one thread at a time."""

    @property
    def layers(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_tokens(self) -> int:
        """The longest text."""

    @property
    def max_step_tokens(self) -> int:
        """The most tokens of one batch; at least max_tokens."""

    @property
    def usual_step_tokens(self) -> int:
        """As many as make a batch fast."""

    @property
    def max_sequences(self) -> int:
        """The most texts of one batch."""

    def encode(self, token_ids: I32, second: I32, lengths: I32, piece: Piece) -> F32 | None:
        """Computes a piece of a batch, in order.

        second: [texts], after how many of its tokens a text's second part begins. Returns the final hidden states
        [tokens, hidden] with the last piece.
        """

    def release_memory(self) -> None:
        """Gives memory back until the next call."""


Deliver = Callable[[F32 | EngineError], None]
"""Gets a request's result [texts, size], or why there is none; on the engine's thread."""


@dataclass(slots=True, eq=False)
class _Request:
    texts: Texts
    job: Job
    starts: I32
    deliver: Deliver
    result: F32 | None = None


@dataclass(frozen=True, slots=True)
class EncoderStatistics:
    """Counters since the start."""

    computed_tokens: int
    texts: int
    waiting_texts: int
    tokens_per_s: float
    """Of the last second with work."""


class Encoder:
    """Thread-safe; the model is used by the engine's own thread only."""

    def __init__(self, model: EncoderModel, head: Head, *, turns: AbstractContextManager[None] | None = None) -> None:
        """turns: each piece is computed inside it, beside engines on the same cores; None: there are none."""
        self._model = model
        self._head = head
        self._turns = nullcontext() if turns is None else turns
        self._pieces = Pieces(model.layers, model.usual_step_tokens)
        self._wake = threading.Condition()
        self._queue = TextQueue(model.max_sequences)
        self._requests: dict[Job, _Request] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._stopped_reason: str | None = None
        self._failures_in_a_row = 0
        self._computed_tokens = self._texts = 0
        self._rate, self._since_s, self._tokens_then = 0.0, time.perf_counter(), 0
        self._thread = threading.Thread(target=self._main, name="redoubt-encoder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest, deliver: Deliver) -> Callable[[], None]:
        """Queues a request's texts; returns what aborts it, after which nothing is delivered.

        Raises InvalidRequestError or EngineStoppedError.
        """
        texts = request.texts
        if texts is None:
            raise InvalidRequestError("This model is an encoder: it makes no text.")
        lengths = texts.lengths
        if not lengths.size or lengths.min() < 1 or lengths.max() > self._model.max_tokens:
            raise InvalidRequestError(f"A text is empty, or longer than this model's {self._model.max_tokens} tokens.")
        if lengths.sum() != texts.token_ids.size or texts.second.size != lengths.size:
            raise InvalidRequestError("The texts' lengths are not those of their tokens.")
        if texts.token_ids.min() < 0 or texts.token_ids.max() >= self._model.vocab_size:
            raise InvalidRequestError("A token is not in this model's vocabulary.")
        job = Job(lengths.tolist(), request.tenant + request.client, request.priority is Priority.BATCH)
        starts = (np.cumsum(lengths) - lengths).astype(np.int32)
        with self._wake:
            if self._stopped_reason is not None:
                raise EngineStoppedError(self._stopped_reason)
            self._requests[job] = _Request(texts, job, starts, deliver)
            self._queue.add(job)
            self._wake.notify()

        def abort() -> None:
            with self._wake:
                job.aborted = True
                self._requests.pop(job, None)

        return abort

    def release_memory(self) -> "Future[bool]":
        """Gives the model's memory back until the next request. The result is False if there are requests."""
        future: Future[bool] = Future()

        def release() -> None:
            with self._wake:
                is_idle = not self._requests
            if is_idle:
                self._model.release_memory()
            future.set_result(is_idle)

        with self._wake:
            if self._stopped_reason is not None:
                future.set_exception(EngineStoppedError(self._stopped_reason))
            else:
                self._calls.append(release)
                self._wake.notify()
        return future

    def statistics(self) -> EncoderStatistics:
        with self._wake:
            waiting = sum(len(job.lengths) - job.done for job in self._requests)
        return EncoderStatistics(self._computed_tokens, self._texts, waiting, self._rate)

    @property
    def longest_tokens(self) -> int:
        """The longest text."""
        return self._model.max_tokens

    @property
    def memory(self) -> None:
        """It saves no pages."""

    @property
    def healthy(self) -> bool:
        """Whether its thread runs and accepts requests."""
        return self._thread.is_alive() and self._stopped_reason is None

    def check(self) -> None:
        """Raises EngineStoppedError unless it is healthy."""
        if not self.healthy:
            raise EngineStoppedError("the encoder has stopped")

    def stop(self) -> None:
        """Ends the thread after its current piece; unfinished requests get EngineStoppedError. Idempotent."""
        with self._wake:
            self._stopped_reason = self._stopped_reason or "the engine is shutting down"
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._end_all()

    # --- the engine's thread ----------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while (batch := self._next()) is not None:
                if batch:
                    self._run(batch)
        except Exception:
            logger.exception("the encoder's thread has failed")
        finally:
            with self._wake:
                self._stopped_reason = self._stopped_reason or "the engine has failed; see its log"
            self._end_all()

    def _next(self) -> list[tuple[_Request, int]] | None:
        """Waits for texts or calls; returns None to end the thread."""
        with self._wake:
            while True:
                if self._stopped_reason is not None:
                    return None
                calls, self._calls = self._calls, deque()
                taken = self._queue.take(self._pieces.tokens(time.perf_counter()))
                batch = [(self._requests[job], number) for job, number in taken if job in self._requests]
                if batch or calls:
                    break
                self._wake.wait()
                self._since_s, self._tokens_then = time.perf_counter(), self._computed_tokens
        for call in calls:
            call()
        return batch

    def _run(self, batch: list[tuple[_Request, int]]) -> None:
        try:
            values = self._encoded(batch)
        except Exception:
            logger.exception("a batch of the encoder has failed")
            self._failures_in_a_row += 1
            for request in {id(request): request for request, _ in batch}.values():
                self._end(request, EngineFailedError("The encoder could not compute these texts."))
            if self._failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
                raise
            return
        self._failures_in_a_row = 0
        if values is None:
            return
        for (request, number), value in zip(batch, values, strict=True):
            if request.result is None:
                request.result = np.empty((len(request.job.lengths), values.shape[1]), np.float32)
            request.result[number] = value
            request.job.done += 1
            if request.job.done == len(request.job.lengths):
                self._end(request, request.result)

    def _encoded(self, batch: list[tuple[_Request, int]]) -> F32 | None:
        """Computes a batch in pieces; None if the engine is to stop."""
        parts = [
            request.texts.token_ids[start : start + request.texts.lengths[number]]
            for request, number in batch
            for start in (request.starts[number],)
        ]
        token_ids = np.concatenate(parts).astype(np.int32, copy=False)
        lengths = np.array([part.size for part in parts], np.int32)
        second = np.array([request.texts.second[number] for request, number in batch], np.int32)
        piece: Piece | None = None
        hidden = None
        while hidden is None:
            if self._stopped_reason is not None:
                return None
            asked_s = time.perf_counter()
            with self._turns:
                began_s = time.perf_counter()
                self._pieces.waited(began_s - asked_s, began_s)
                piece = self._pieces.after(piece, token_ids.size, began_s)
                hidden = self._model.encode(token_ids, second, lengths, piece)
                ended_s = time.perf_counter()
            self._pieces.computed(piece, token_ids.size, ended_s - began_s)
        self._computed_tokens += token_ids.size
        self._texts += len(batch)
        if (elapsed_s := ended_s - self._since_s) >= 1.0:
            self._rate = (self._computed_tokens - self._tokens_then) / elapsed_s
            self._since_s, self._tokens_then = ended_s, self._computed_tokens
        return self._head.of(hidden, lengths)

    def _end(self, request: _Request, result: F32 | EngineError) -> None:
        with self._wake:
            known = self._requests.pop(request.job, None)
            request.job.aborted = request.job.done < len(request.job.lengths)
        if known is not None:
            request.deliver(result)

    def _end_all(self) -> None:
        with self._wake:
            requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            request.deliver(EngineStoppedError(self._stopped_reason or ""))
