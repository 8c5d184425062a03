"""How the ingress reaches the workers: one call that streams a request's tokens, and the worker table.

It owns the details of Ray's streaming handles (cancellation, error types); it knows nothing of HTTP or text.

Tokens come by value, over Serve's own gRPC between replicas (`_by_reference=False`), not as objects of Ray's
store: a message costs about half as much CPU, which is the engine's. Ray guards that server as it does its
others (token, RAY_USE_TLS). A message brings what a step made for all requests of this ingress
(`app.engine.bundle`), on the stream of one of them; from a worker on the same machine it comes by a direct line
(`app.direct_line`), and on the streams an output's beginning, now and then all since, and its end.

Cancellation, as read in Ray Serve 2.60: nothing happens to a worker's generator when a streaming response
object is merely dropped. `DeploymentResponseGenerator.cancel()` must be called: before a worker is chosen it
cancels the routing task, after that the gRPC call, and Serve raises CancelledError in `Worker.generate`,
whose `finally` aborts the request in the engine. `cancel()` does not block. Serve cancels the ingress' own
task when the HTTP client disconnects, so an ingress must close `generate` on its way out:

    async with contextlib.aclosing(client.generate(request)) as deltas:
        async for delta in deltas:
            ...

(`async for` alone does not close an async generator when its body raises or is cancelled.)
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any, cast

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from app.controller.router import worker_cards, worker_rows
from app.messages.bundle import Assembler, Bundle, Part
from app.messages.direct_line import Lines
from app.messages.failures import EngineError, NoWorkerError, QueueFullError, WorkerLostError
from app.messages.model_card import ModelCard
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.workers import WorkerRow
from app.ray_internals import LINES, session_folder


class Arrivals:
    """Where the outputs of all workers arrive that one ingress reads, by whatever way; made in its replica."""

    def __init__(self) -> None:
        self.reader = uuid.uuid4().hex[:16]
        """The ingress' name, to workers and as a socket's; short, as a socket's path must be."""
        self.inboxes: dict[str, _Inbox] = {}
        self._lines = Lines(session_folder(LINES) / self.reader, self.put)

    async def open(self) -> None:
        """From now on workers of this machine connect."""
        await self._lines.open()

    def close(self) -> None:
        """They connect no more."""
        self._lines.close()

    def put(self, bundle: Bundle) -> None:
        """What is of requests that were given up meanwhile is dropped."""
        for part in bundle:
            if (its := self.inboxes.get(part.request_id)) is not None:
                its.put(part)


class WorkerClient:
    """The ingress' view of one model's workers, made in its replica from the handle that `build` binds to it."""

    def __init__(self, handle: DeploymentHandle[Any], arrivals: Arrivals) -> None:
        """arrivals: one for all of an ingress' clients."""
        self._handle = handle.options(stream=True, _by_reference=False)
        self._arrivals = arrivals

    def workers(self) -> list[WorkerRow]:
        """The worker table as this process' router sees it; empty before the first worker. Any thread."""
        return worker_rows(self._handle)

    def cards(self) -> list[ModelCard]:
        """What the live workers run. Any thread."""
        return worker_cards(self._handle)

    def is_ready(self) -> bool:
        """Whether a request could be given to a worker now (else: 503)."""
        return any(row.check_heart_beat for row in self.workers())

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Streams the request's deltas; the last one has a finish reason. Closing it aborts the request.

        Raises NoWorkerError (503), WorkerLostError (503; the stream breaks off), QueueFullError (429),
        RequestTooLongError (400), EngineStoppedError (503): all are EngineError with a message for the user.
        """
        if not self.is_ready():
            raise NoWorkerError("No worker is up: the service is starting, or its workers are lost. Try again later.")
        call = self._handle.generate.remote(request, self._arrivals.reader)
        response = cast(DeploymentResponseGenerator[Bundle], call)
        inbox = self._arrivals.inboxes[request.request_id] = _Inbox()
        reading = asyncio.create_task(self._read(request.request_id, response, inbox))
        try:
            finished = False
            while not finished:
                delta = await inbox.take()
                finished = delta.finish_reason is not None
                yield delta
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, EngineError):
                raise cause from None
            raise
        except (ActorDiedError, ActorUnavailableError) as error:
            raise WorkerLostError("The worker was lost while it made this answer. Try again.") from error
        except BackPressureError as error:
            raise QueueFullError("All workers are busy and their queues are full. Try again later.") from error
        except (DeploymentUnavailableError, RequestCancelledError) as error:
            raise NoWorkerError("No worker could take the request. Try again later.") from error
        finally:
            self._arrivals.inboxes.pop(request.request_id, None)
            response.cancel()  # type: ignore[no-untyped-call]
            # That does nothing in the moment in which a worker has been found, but nobody was told; a turn later it
            # is `_read` that stands in the call, and whose end cancels it.
            asyncio.get_running_loop().call_soon(reading.cancel)

    async def _read(self, request_id: str, response: DeploymentResponseGenerator[Bundle], inbox: "_Inbox") -> None:
        """Reads one request's stream, whether its own reader does or not: it may be bringing others' tokens."""
        try:
            async for bundle in response:
                self._arrivals.put(bundle)
            inbox.fail(RuntimeError("the worker ended a stream without a finish reason"))
        except (Exception, asyncio.CancelledError) as error:
            if self._arrivals.inboxes.get(request_id) is inbox:  # else it was cancelled from here
                inbox.fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise


class _Inbox:
    """What came of one request; from any of the worker's streams."""

    def __init__(self) -> None:
        self._assembler = Assembler()
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, part: Part) -> None:
        self._assembler.put(part)
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """The request's own stream has ended."""
        self._error = error
        self._news.set()

    async def take(self) -> TokenDelta:
        """The next delta; what ended the stream is raised after the last."""
        while (delta := self._assembler.take()) is None:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        return delta
