"""The worker of an encoder: a Serve deployment like `Worker`, whose model makes vectors or scores of texts.

It has no cores of its own: it runs on those of a chat model's worker, in turns. Knows nothing of text or HTTP.
"""

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from app.engine.encoding.encoder import Encoder
from app.engine.encoding.head import F32
from app.messages.bundle import Bundle, Part
from app.messages.failures import EngineError, ModelReplacedError, PlaceWantedBackError
from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest, Priority, Texts
from app.messages.start import StartPhase, note_phase
from app.messages.workers import WorkerReport
from app.settings.applications import ModelApplicationSettings
from app.workers.admission import Admission
from app.workers.encoder_load import EncoderFactory, load_encoder
from app.workers.worker import WANTED_BACK, Worker

_WARM_UP_TEXTS: Final = 8
_TIMED_PASSES: Final = 2
_WARM_UP_TIMEOUT_S: Final = 600.0


class EncoderWorker(Worker):
    """One encoder behind a bounded number of places."""

    def __init__(self, settings: ModelApplicationSettings, make_encoder: EncoderFactory = load_encoder) -> None:
        """Returns when the encoder is warm.

        Raises NoRoomError, SealedModelError, another ValueError, and what `make_encoder` raises.
        """
        place = self._take_place(settings, beside=True)
        settings, worker = place.settings, place.settings.worker
        model, head = make_encoder(settings, place.files, place.slot, place.threads)
        self._store = self._memory = None
        self._encoder = Encoder(model, head, turns=self._turns)
        self._encoder.start()
        self._admission = Admission(
            max_concurrent=worker.max_concurrent_requests, max_queued=worker.max_queued_requests
        )
        note_phase(place.starts, place.card.name, StartPhase.WARMING_UP)
        speed = _warmed_up(self._encoder, model.vocab_size, model.max_tokens)
        note_phase(place.starts, place.card.name, StartPhase.READY)
        self._sleep = self._make_sleep(self._encoder, settings)
        self._facts = place.facts(
            model, speed=speed, max_context_tokens=model.max_tokens, max_running=worker.max_concurrent_requests
        )

    async def generate(self, request: GenerateRequest, reader: str) -> AsyncGenerator[Bundle, None]:
        """Streams one delta, with the vectors or scores of the request's texts.

        Raises ModelReplacedError, QueueFullError, PlaceWantedBackError, InvalidRequestError, EngineStoppedError.
        """
        if request.model_identity not in ("", self._facts.model.identity):
            raise ModelReplacedError("The model was replaced by another version. Try again.")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[F32] = loop.create_future()

        def put(found: F32 | EngineError) -> None:
            if result.done():
                return
            if isinstance(found, EngineError):
                result.set_exception(found)
            else:
                result.set_result(found)

        def give_back() -> None:
            put(PlaceWantedBackError(WANTED_BACK))

        is_batch = request.priority is Priority.BATCH
        with self._admission.place_of_batch(give_back) if is_batch else self._admission.place():
            async with nullcontext() if self._sleep is None else self._sleep.awake():
                abort = self._encoder.submit(request, lambda found: _call(loop, put, found))
                try:
                    values = await result
                finally:
                    abort()
        prompt = PromptResult(embedding=values)
        delta = TokenDelta((), "length", prompt=prompt, arithmetic=self._facts.arithmetic)
        yield (Part(request.request_id, 0, delta),)

    def check_health(self) -> None:
        """Raises if the encoder has stopped; Serve then replaces the worker."""
        self._encoder.check()

    def record_routing_stats(self) -> dict[str, Any]:
        """Returns WorkerReport, the heartbeat."""
        self.check_health()
        counts = self._encoder.statistics()
        batch = self._admission.of_batches
        here = self._admission.taken - batch
        running = min(here, self._facts.max_running)
        return WorkerReport(
            heart_beat=round(time.time(), 3),
            running=running,
            waiting=here - running,
            batch=batch,
            kv_pages=0,
            kv_pages_free=0,
            computed_tokens=counts.computed_tokens,
            asleep=self._sleep is not None and self._sleep.is_asleep,
        ).to_wire()

    def __del__(self) -> None:
        """Shuts the worker down. Serve calls this after its requests have had time to finish."""
        if hasattr(self, "_encoder"):
            self._encoder.stop()
        super().__del__()


def _call(loop: asyncio.AbstractEventLoop, put: Any, found: F32 | EngineError) -> None:
    """Hands a result to the event loop, on the encoder's thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(put, found)


def _warmed_up(encoder: Encoder, vocab_size: int, max_tokens: int) -> float:
    """Touches all weights and buffers; returns tokens per second of the best timed pass."""
    rng = random.Random(0)
    length = min(max_tokens, 64)
    best_s = float("inf")
    for _ in range(1 + _TIMED_PASSES):
        ids = np.array([rng.randrange(vocab_size) for _ in range(_WARM_UP_TEXTS * length)], np.int32)
        lengths = np.full(_WARM_UP_TEXTS, length, np.int32)
        request = GenerateRequest(
            request_id="warm-up",
            prompt_token_ids=(),
            max_new_tokens=0,
            texts=Texts(ids, lengths, lengths),
            tenant=b"warm-up",
        )
        done = threading.Event()
        errors: list[EngineError] = []

        def deliver(found: F32 | EngineError, done: threading.Event = done, errors: list[EngineError] = errors) -> None:
            if isinstance(found, EngineError):
                errors.append(found)
            done.set()

        began_s = time.perf_counter()
        encoder.submit(request, deliver)
        if not done.wait(_WARM_UP_TIMEOUT_S):
            raise TimeoutError(f"the warm-up did not finish within {_WARM_UP_TIMEOUT_S:g} s")
        if errors:
            raise errors[0]
        best_s = min(best_s, time.perf_counter() - began_s)
    return _WARM_UP_TEXTS * length / best_s
