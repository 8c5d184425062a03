"""The ingress' client of the workers: one call that streams a request's tokens, and the worker table.

It owns the details of Ray's streaming handles (cancellation, error types) and knows nothing of HTTP or text.

Tokens are sent by value over Serve's gRPC between replicas, and not as objects in Ray's store, which would cost more
CPU per message. Ray protects that server like its others (token, RAY_USE_TLS). One message holds what one engine step
produced for all requests of this ingress (`app.messages.bundle`) and travels on the stream of one of them. A worker on
the same machine sends tokens over a Unix socket instead (`app.messages.direct_line`); the stream then carries the first
token, from time to time everything since, and the end.

Cancellation in Ray Serve 2.60: dropping a streaming response object does not stop the worker's generator.
`DeploymentResponseGenerator.cancel()` does. Before a worker is chosen it cancels the routing task; after that it
cancels the gRPC call, and Serve raises CancelledError in `Worker.generate`, whose `finally` aborts the request in the
engine. `cancel()` does not block. Serve cancels the ingress' own task when the HTTP client disconnects, so an ingress
must close `generate` with `contextlib.aclosing`: `async for` alone does not close an async generator when its body
raises or is cancelled.
"""

import asyncio
import logging
import math
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from time import monotonic
from typing import Any, cast

from ray.exceptions import RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.serve.request_router import RunningReplica

from app.controller.free_places import FreePlaces
from app.controller.router import has_workers, stands_still, worker_cards, worker_places, worker_replicas, worker_rows
from app.controller.unfinished import UnfinishedOutput
from app.messages.bundle import Assembler, Bundle, Part
from app.messages.crashes import CRASHES_FOLDER, has_crashed
from app.messages.direct_line import LINES_FOLDER, Lines
from app.messages.failures import (
    EngineError,
    EngineFailedError,
    EngineStoppedError,
    ModelReplacedError,
    NoWorkerError,
    QueueFullError,
    StepFailedError,
    WorkerLostError,
)
from app.messages.memory import MemoryMethod
from app.messages.model_card import ModelCard
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import GenerateRequest, Priority
from app.messages.workers import WorkerRow
from app.ray_internals import BROKEN_CALLS, actor_of, actor_of_call, call_replica, session_folder, streaming_by_value

logger = logging.getLogger("ray.serve")

_CALL_TIMEOUT_S = 60.0
_NO_WORKER = "No worker is up: the service is starting, or its workers are lost. Try again later."
_ALL_FULL = "All workers are busy and their queues are full. Try again later."
_LOOK_S = 0.25
_LOOK_OF_BATCH_S = 2.0
_SILENCE_S = 5.0
_GONE_S = 1.0
"""Within which a request whose client is gone ends."""
"""After this time without a token, the worker is checked for a stall. Prefill may take longer."""
_RESERVED_SHARE = 16
"""One in this many places is reserved for callers that have not taken all the others."""
_PATIENCE_OF_BEGUN = 10
_LONGEST_TRIAL_S = 30.0
"""The longest turn of a suspect, which may have a long prompt; then the next one starts anyway."""


class Arrivals:
    """Receives the outputs of all workers for one ingress, from streams and sockets.

    Created in the ingress' process.
    """

    def __init__(self) -> None:
        self.reader = uuid.uuid4().hex[:16]
        """The ingress' name for workers and its socket; short, because socket paths must be."""
        self.outputs: dict[str, _RequestOutputs] = {}
        """The requests that are being read, by id."""
        self._lines = Lines(session_folder(LINES_FOLDER) / self.reader, self.put)

    async def open(self) -> None:
        """Lets workers on this machine connect."""
        await self._lines.open()

    def close(self) -> None:
        """Closes these connections, and refuses new ones."""
        self._lines.close()

    def put(self, bundle: Bundle) -> None:
        """Hands each part to its request; parts of requests that are no longer read are dropped."""
        for part in bundle:
            if (outputs := self.outputs.get(part.request_id)) is not None:
                outputs.put(part)


class WorkerClient:
    """Calls one model's workers; created in the ingress' process from a handle to their deployment."""

    def __init__(self, handle: DeploymentHandle[Any], arrivals: Arrivals, *, wait_for_worker_s: float) -> None:
        """Makes no remote call.

        arrivals: shared by all WorkerClients of an ingress.
        wait_for_worker_s: how long a request waits while no worker is up.
        """
        self._handle = streaming_by_value(handle)
        self._arrivals = arrivals
        self._wait_for_worker_s = wait_for_worker_s
        self._trials = Trials()
        self._free_places = FreePlaces()
        self._open: Counter[bytes] = Counter()
        self._calls: dict[_RequestOutputs, DeploymentResponseGenerator[Bundle]] = {}
        self._watch: asyncio.Task[None] | None = None
        self.losses = dict.fromkeys(Loss, 0)
        """How often requests have lost their worker and continued, since the start."""

    def workers(self) -> list[WorkerRow]:
        """The worker table in this process; empty before the first worker. Thread-safe."""
        return worker_rows(self._handle)

    def cards(self) -> list[ModelCard]:
        """The models of the live workers. Thread-safe."""
        return worker_cards(self._handle)

    def has_workers(self) -> bool:
        """Whether a worker might take a request; the router probes those that have been silent for long."""
        return has_workers(self._handle)

    def places(self) -> int:
        """How many requests the workers can hold, running and waiting; 0 before the first worker. Thread-safe."""
        return worker_places(self._handle)

    async def call_each(self, method: MemoryMethod, *arguments: object) -> list[Any]:
        """Calls the method on every worker. A result is None if the call failed or took over a minute."""

        async def call(replica: RunningReplica) -> Any:
            try:
                async with asyncio.timeout(_CALL_TIMEOUT_S):
                    return await call_replica(replica, method, *arguments)
            except Exception as error:  # the others must be called in any case
                logger.warning("%s failed on a worker: %s", method, type(error).__qualname__)
                return None

        return await asyncio.gather(*map(call, worker_replicas(self._handle)))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Streams the request's deltas; the last one has a finish reason. Closing the stream aborts the request.

        If the worker is lost, the output continues on another one and the caller sees a pause. While no worker is up it
        waits. A request of a batch waits without limit, and takes no place of its caller's.

        Raises NoWorkerError (503) after `wait_for_worker_s`, ModelReplacedError (503) at once, QueueFullError (429),
        RequestTooLongError (400), RequestGivenUpError (500): all are EngineError with a message for the user.
        """
        output = UnfinishedOutput(request)
        is_batch = request.priority is Priority.BATCH
        patience = _Patience(math.inf, _LOOK_OF_BATCH_S) if is_batch else _Patience(self._wait_for_worker_s, _LOOK_S)
        with nullcontext() if is_batch else self._place(request.tenant + request.client):
            while not output.is_finished:
                try:
                    async with self._trials.turn(output), aclosing(self._attempt(output, patience)) as deltas:
                        async for delta in deltas:
                            yield delta
                except ModelReplacedError:
                    raise
                except (NoWorkerError, QueueFullError) as error:
                    if isinstance(error, QueueFullError) and not (output.has_begun or is_batch):
                        raise
                    await patience.wait(error, has_begun=output.has_begun)
                except (EngineStoppedError, StepFailedError) as error:
                    patience.restart()
                    self._lost(output, error)

    @contextmanager
    def _place(self, caller: bytes) -> Iterator[None]:
        """Counts a caller's request while it lasts. No caller may take the last places of all queues alone.

        If this ingress' own requests fill all queues, the router is not asked, because it could only refuse. Raises
        QueueFullError with a Retry-After, which it also adds to one raised inside.
        """
        places = self.places()
        if not self._open:
            self._free_places.restart()
        self._open[caller] += 1
        try:
            if places and self._open[caller] > places - places // _RESERVED_SHARE:
                raise QueueFullError("You have as many requests here as one may have. Try again later.")
            if places and self._open.total() > places:
                raise QueueFullError(_ALL_FULL)
            yield
        except QueueFullError as error:
            error.retry_after_s = self._free_places.retry_after_s(monotonic(), places)
            raise
        except NoWorkerError:
            raise
        except BaseException:
            self._free_places.ended(monotonic())
            raise
        else:
            self._free_places.ended(monotonic())
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    def _lost(self, output: UnfinishedOutput, error: EngineError) -> None:
        """Counts a loss. Raises RequestGivenUpError if there were too many."""
        if isinstance(error, WorkerLostError):
            loss = Loss.CRASHED if error.has_crashed else Loss.LOST
        else:
            loss = Loss.CRASHED if isinstance(error, (EngineFailedError, StepFailedError)) else Loss.MOVED
        name, tokens = output.request_id, output.tokens
        logger.warning("A worker is lost (%s): after %d tokens request %s goes on elsewhere.", loss, tokens, name)
        self.losses[loss] += 1
        output.lost(loss)

    async def _attempt(self, output: UnfinishedOutput, patience: "_Patience") -> AsyncGenerator[TokenDelta, None]:
        """Streams the rest of the output from one worker.

        Serve asks `router.WorkerRouter` for a replica and calls `app.workers.worker.Worker.generate` there (see
        `app.deploy`). Raises EngineError: WorkerLostError, or what the worker raised.
        """
        patience.begin()
        while not self.has_workers():
            await patience.wait(NoWorkerError(_NO_WORKER), has_begun=output.has_begun)
        request = output.rest()
        call = self._handle.generate.remote(request, self._arrivals.reader)
        response = cast(DeploymentResponseGenerator[Bundle], call)
        outputs = self._arrivals.outputs[request.request_id] = _RequestOutputs()
        reading = asyncio.create_task(self._read(request.request_id, response, outputs))
        self._calls[outputs] = response
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_calls())
        try:
            while not output.is_finished:
                delta = output.add(await outputs.take())
                patience.restart()
                yield delta
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, EngineError):
                raise cause from None
            raise
        except BROKEN_CALLS as error:
            raise WorkerLostError(
                "The worker was lost while it made this answer.", has_crashed=self._has_crashed(error)
            ) from error
        except BackPressureError as error:
            raise QueueFullError(_ALL_FULL) from error
        except DeploymentUnavailableError as error:
            raise NoWorkerError("No worker could take the request. Try again later.") from error
        finally:
            self._calls.pop(outputs, None)
            self._arrivals.outputs.pop(request.request_id, None)
            response.cancel()  # type: ignore[no-untyped-call]
            # `cancel` has no effect after the router has chosen a worker and before the response knows it. One turn of
            # the loop later `_read` waits in the call, and cancelling `_read` cancels the call.
            asyncio.get_running_loop().call_soon(reading.cancel)

    async def _watch_calls(self) -> None:
        """Ends calls to stalled workers while there are calls: Ray notices only after minutes."""
        try:
            while self._calls:
                await asyncio.sleep(_SILENCE_S / 5)
                await self._end_silent_calls()
        finally:
            self._watch = None

    async def _end_silent_calls(self) -> None:
        silent_s = monotonic() - _SILENCE_S
        silent: defaultdict[str, list[_RequestOutputs]] = defaultdict(list)
        for outputs, response in self._calls.items():
            if outputs.heard_s <= silent_s and (actor := actor_of_call(response)) is not None:
                outputs.heard_s = monotonic()
                silent[actor].append(outputs)
        stand_still = await asyncio.gather(*(stands_still(self._handle, actor) for actor in silent))
        for stands, of_worker in zip(stand_still, silent.values(), strict=True):
            for outputs in of_worker if stands else ():
                outputs.fail(WorkerLostError("The worker does nothing any more."))

    def _has_crashed(self, error: Exception) -> bool:
        actor = actor_of(error)
        return actor is not None and has_crashed(session_folder(CRASHES_FOLDER), actor)

    async def _read(
        self, request_id: str, response: DeploymentResponseGenerator[Bundle], outputs: "_RequestOutputs"
    ) -> None:
        """Reads one request's stream to its end, because it may carry other requests' tokens too."""
        try:
            async for bundle in response:
                self._arrivals.put(bundle)
            outputs.fail(WorkerLostError("The worker ended this answer before its end."))
        except RequestCancelledError:
            self._given_up(request_id, outputs)
        except Exception as error:
            outputs.fail(error)
        except asyncio.CancelledError:
            self._given_up(request_id, outputs)
            raise

    def _given_up(self, request_id: str, outputs: "_RequestOutputs") -> None:
        """Fails a call that was cancelled, a moment later: if it was its client that went, `_attempt` ends by then.

        Serve cancels the calls of a request whose client is gone, and may do so before that request learns of it.
        """

        def fail() -> None:
            if self._arrivals.outputs.get(request_id) is outputs:
                outputs.fail(WorkerLostError("The worker gave this answer up."))

        asyncio.get_running_loop().call_later(_GONE_S, fail)


class _Patience:
    """How long a request waits for a worker; longer if its client has already seen a part of the output."""

    def __init__(self, limit_s: float, look_s: float) -> None:
        """look_s: the longest time between two tries."""
        self._limit_s = limit_s
        self._look_s = look_s
        self._since_s: float | None = None

    def restart(self) -> None:
        """Restarts the clock, because a worker has the request."""
        self._since_s = None

    def begin(self) -> None:
        """Starts the clock, unless it runs, because the request needs a worker."""
        if self._since_s is None:
            self._since_s = monotonic()

    async def wait(self, error: EngineError, *, has_begun: bool) -> None:
        """Waits a moment. Raises `error` if the time is over."""
        self.begin()
        assert self._since_s is not None
        if monotonic() - self._since_s >= self._limit_s * (_PATIENCE_OF_BEGUN if has_begun else 1):
            raise error
        await asyncio.sleep(random.uniform(self._look_s / 5, self._look_s))  # spread the retries


class Trials:
    """Runs requests that may have crashed a worker one at a time, until they are cleared."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, output: UnfinishedOutput) -> AsyncIterator[None]:
        """Waits for the request's turn, which comes at once unless it is a suspect."""
        if not output.is_suspect:
            yield
            return
        await self._lock.acquire()
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._lock.release()

        output.on_enough = end
        timer = asyncio.get_running_loop().call_later(_LONGEST_TRIAL_S, end)
        try:
            yield
        finally:
            timer.cancel()
            output.on_enough = None
            end()


class _RequestOutputs:
    """The outputs of one request, in order, from whichever stream or socket they came."""

    def __init__(self) -> None:
        self._assembler = Assembler()
        self.heard_s = monotonic()
        """When something last arrived, in seconds of the monotonic clock."""
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, part: Part) -> None:
        self._assembler.put(part)
        self.heard_s = monotonic()
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Records the error that has ended the request's own stream."""
        self._error = error
        self._news.set()

    async def take(self) -> TokenDelta:
        """Waits for the next delta. After the last it raises the error that ended the stream."""
        while (delta := self._assembler.take()) is None:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        return delta
