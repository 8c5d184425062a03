"""The controller: LOTTERY and SHORTEST_QUEUE as a Ray Serve request router, and the worker table behind them.

One router lives in each process that holds a handle to the workers (each ingress replica). It gets the workers'
heartbeats through Serve's controller, which polls `record_routing_stats` and broadcasts what changed. Answers to
requests and probes count as heartbeats too, so that routing goes on while the controller is replaced. It reads only
these parts of a request:

- Which version of the model it was planned for. During a rolling change there are workers of two; the other version's
  never get it.
- Whose saved pages it may use: these requests prefer one worker, so that a user's pages are in one memory.
- Whether nobody waits for it (a batch's): it gets no place of those that batches leave free, and others' requests are
  ordered as if it were not there.
- How its output so far was computed: a worker that computes alike goes on with the same tokens, and is preferred.

This file has every use of Serve's public router API (alpha in 2.60, which is pinned). It relies on these points:

- A rank holds one replica. Within a rank Serve would prefer the least cached queue length and overrule the policy.
- `should_backoff` makes Serve wait between two passes over workers that are all full.
- `pending_request.args` are the call's arguments. A place that was found goes to the request that has waited longest
  of those that may have it, which is another one's only where several wait: then the order of arrival counts more than
  whose home it is.
- An exception set on `pending_request.future` reaches the caller, and a non-empty answer then ends the pass.
- A request that a worker sends back is sent, counted and completed. One that it accepts has its place in Serve's count
  until `decrement_queue_len_cache`, and `_probe_queue_lens` is how Serve itself asks workers. A worker is full if it is
  by that count, here too.
- FIFOMixin: the choices of one HTTP request share an internal request id. The base class would match it to one of them
  only and leave the others waiting for ever.

Serve pickles this module by value, so types that other modules compare (errors, rows) are defined elsewhere.
"""

import asyncio
import random
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from app.controller.router_state import RouterState
from app.controller.worker_table import WorkerTable
from app.messages.failures import ModelReplacedError, NoWorkerError, QueueFullError
from app.messages.model_card import ModelCard
from app.messages.requests import GenerateRequest, Priority
from app.messages.workers import WorkerFacts, WorkerReport, WorkerRow, places_for_batches
from app.ray_internals import actor_of_replica, forget_request, router_of, take_waiting_requests, without_waiting

# Generous: a worker answers a probe within milliseconds, as its event loop does no computing.
_PROBE_TIMEOUT_S = 0.5
_LONGEST_SEARCH_S = 5.0
"""How long a request is offered to workers that report but neither take it nor are full, which are unreachable."""


class WorkerRouter(FIFOMixin, RequestRouter):
    """Orders the live workers by policy; refuses a request if none is up, or if every queue is full."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Takes `router_kwargs(...)`; Serve calls it once."""
        self._table = WorkerTable(expiration_s=kwargs["expiration_s"], forget_after_s=kwargs["forget_after_s"])
        rng = random.Random(kwargs["seed"])
        self._state = RouterState(
            policy=kwargs["policy"], table=self._table, rng=rng, report_period_s=kwargs["report_period_s"]
        )
        self._queues = self._state.queues
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._tried_s: weakref.WeakKeyDictionary[asyncio.Future[Any], float] = weakref.WeakKeyDictionary()

    def rows(self) -> list[WorkerRow]:
        """The worker table. Thread-safe."""
        now_s = monotonic()
        worker_ids = [_worker_id(r) for r in list(self.curr_replicas.values())]
        return self._table.rows(dict(zip(worker_ids, self._queues.of_all(worker_ids, now_s), strict=True)), now_s)

    def cards(self) -> list[ModelCard]:
        """The models of the live workers. Thread-safe."""
        return self._table.cards(monotonic())

    def places(self) -> int:
        """How many requests the workers can hold. Thread-safe."""
        return self._table.places()

    def has_workers(self) -> bool:
        """Whether a worker might take a request; silent workers count, because they are probed. Thread-safe."""
        return self._table.has_present()

    async def choose_replicas(  # type: ignore[override]  # Serve only iterates, as its own routers know
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Iterable[list[RunningReplica]]:
        """Yields the live workers, best first. A second pass means that the first found no place."""
        request, allowed = _request_of(pending_request), candidate_replicas
        if request is not None:
            allowed = [r for r in candidate_replicas if self._table.may_run(_worker_id(r), request)]
        live = await self._live(allowed)
        if live and request is not None and request.priority is Priority.BATCH:
            with_room = [r for r in live if self._length(r) < places_for_batches(r.max_ongoing_requests)]
            if pending_request is not None and not with_room:
                self._refuse(pending_request, QueueFullError("All workers are busy with others' requests."))
                return [live]
            live = with_room
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if not live:
                self._refuse(pending_request, self._no_worker(request))
                return [candidate_replicas]
            since_s = self._tried_s.get(pending_request.future)
            if since_s is not None and all(self._is_full(r) and not self._gives_way(r) for r in live):
                self._refuse(pending_request, QueueFullError("All workers' queues are full. Try again later."))
                return [live]
            if since_s is not None and monotonic() - since_s >= _LONGEST_SEARCH_S:
                self._refuse(pending_request, self._no_worker(request))
                return [live]
            self._tried_s.setdefault(pending_request.future, monotonic())
        order = self._state.candidates(
            [_worker_id(r) for r in live], lambda i: self._is_full(live[i]), request, monotonic()
        )
        return self._reserving(live[i] for i in order)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Takes Serve's list of running workers, with their facts and last reports."""
        super().update_replicas(replicas)
        reported = self._state.update({_worker_id(r): self._parsed(r) for r in replicas}, monotonic())
        for replica in replicas:
            if (length := reported.get(_worker_id(replica))) is not None:
                self._correct(replica, length)
        self._refuse_all_if_empty()

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Counts the request as in flight, which replaces its reservation."""
        super().on_send_request(replica_id)
        self._queues.sent(replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Counts a request out that has ended, in whatever way, or that the worker has sent back."""
        super().on_request_completed(replica_id, internal_request_id)
        self._queues.completed(replica_id.unique_id)

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """Counts an accepted request as ended."""
        super().decrement_queue_len_cache(replica_id)
        self._queues.freed(replica_id.unique_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Takes the true queue length from a worker's answer."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        self._queues.counted(replica_id.unique_id, num_ongoing_requests)
        self._table.heard(replica_id.unique_id, monotonic())

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Marks a worker as lost because its process has died."""
        super().on_replica_actor_died(replica_id)
        self._table.lost(replica_id.unique_id)
        self._refuse_all_if_empty()

    async def stands_still(self, actor: str) -> bool:
        """Whether this worker has stopped reporting and does not answer a probe, while another worker does."""
        replicas = list(self.curr_replicas.values())
        _, stale = self._split(replicas)
        silent = [replica for replica in stale if actor_of_replica(replica) == actor]
        if not silent:
            return False
        await asyncio.gather(*(self._probe(replica) for replica in replicas))
        live, stale = self._split(replicas)
        return bool(live) and silent[0] in stale

    async def _live(self, replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
        live, stale = self._split(replicas)
        if stale and live:
            for replica in stale:
                self._start_probe(replica)
        elif stale:
            # No worker has reported: either all are lost, or only the controller, which passes reports on.
            await asyncio.gather(*(self._probe(replica) for replica in stale))
            live, _ = self._split(replicas)
        return live

    def _split(self, replicas: Sequence[RunningReplica]) -> tuple[list[RunningReplica], list[RunningReplica]]:
        now_s = monotonic()
        live: list[RunningReplica] = []
        stale: list[RunningReplica] = []
        for replica in replicas:
            (live if self._table.is_alive(_worker_id(replica), now_s) else stale).append(replica)
        return live, stale

    async def _probe(self, replica: RunningReplica) -> None:
        """Asks a worker for its queue length; waits for the answer if a probe is already running."""
        await asyncio.shield(self._start_probe(replica))

    def _start_probe(self, replica: RunningReplica) -> asyncio.Task[None]:
        worker_id = _worker_id(replica)
        if (task := self._probing.get(worker_id)) is None:
            task = self._probing[worker_id] = asyncio.create_task(self._ask(replica))
            task.add_done_callback(lambda _: self._probing.pop(worker_id, None))
        return task

    async def _ask(self, replica: RunningReplica) -> None:
        with suppress(Exception):  # it did not answer, for whatever reason
            answer = replica.get_queue_len(deadline_s=_PROBE_TIMEOUT_S)
            self.on_new_queue_len_info(replica.replica_id, await asyncio.wait_for(answer, _PROBE_TIMEOUT_S))

    async def _probe_queue_lens(
        self, replicas: list[RunningReplica], backoff_index: int
    ) -> list[tuple[RunningReplica, int | None]]:
        """Overrides Serve's: probes new workers, and full ones before it skips them."""
        answers = await super()._probe_queue_lens(replicas, backoff_index)
        for replica, length in answers:
            if length is not None:
                self.on_new_queue_len_info(replica.replica_id, length)
        return answers

    def _fulfill_next_pending_request(self, replica: RunningReplica, request_metadata: Any = None) -> None:
        """Overrides Serve's: gives a place to the longest-waiting request that may have it."""
        worker_id = _worker_id(replica)

        def may_not(waiting: PendingRequest) -> bool:
            request = _request_of(waiting)
            return request is not None and not self._table.may_run(worker_id, request)

        with without_waiting(self, may_not):
            super()._fulfill_next_pending_request(replica, request_metadata)

    def _no_worker(self, request: GenerateRequest | None) -> NoWorkerError:
        if request is not None and self._table.is_replaced(request, monotonic()):
            return ModelReplacedError("The model was replaced by another version. Try again.")
        return NoWorkerError("No worker answers. Try again later.")

    def _parsed(self, replica: RunningReplica) -> tuple[WorkerFacts, WorkerReport | None]:
        """Parses a replica's facts and report. Most of a broadcast is old, and known parts are not parsed again."""
        stats: Mapping[str, Any] = replica.routing_stats
        facts, report = self._table.known(_worker_id(replica))
        if facts is None:
            facts = WorkerFacts.from_wire(replica.replica_metadata)
        if stats and (report is None or report.heart_beat != stats["heart_beat"]):
            report = WorkerReport.from_wire(stats)
        return facts, report

    def _correct(self, replica: RunningReplica, length: int) -> None:
        """Updates Serve's own count from a report, because probes get old and other routers send requests too.

        Serve probes a worker that is full by its count; otherwise the worker would get a request that it sends back.
        """
        known = self.replica_queue_len_cache.get(replica.replica_id)
        if known is not None and length != known:
            self.replica_queue_len_cache.update(replica.replica_id, length)

    def _is_full(self, replica: RunningReplica) -> bool:
        return self._length(replica) >= replica.max_ongoing_requests

    def _gives_way(self, replica: RunningReplica) -> bool:
        """Whether batches had places there, as last reported, which they give back one after another."""
        return self._table.of_batches(_worker_id(replica)) > 0

    def _length(self, replica: RunningReplica) -> int:
        """The worker's requests, by its last answer to a probe, or else by the known queue length."""
        known = self.replica_queue_len_cache.get(replica.replica_id)
        return self._queues.of(_worker_id(replica), monotonic()) if known is None else known

    def _reserving(self, replicas: Iterable[RunningReplica]) -> Iterator[list[RunningReplica]]:
        began_s = monotonic()
        for replica in replicas:
            worker_id = _worker_id(replica)
            self._queues.reserve(worker_id, monotonic())
            yield [replica]
            self._queues.release(worker_id)  # Serve asks for the next worker because this one was full
            if monotonic() - began_s >= _LONGEST_SEARCH_S:
                return

    def _refuse_all_if_empty(self) -> None:
        if not self.curr_replicas:
            for pending_request in take_waiting_requests(self):
                self._refuse(pending_request, NoWorkerError("No worker is up. Try again later."))

    def _refuse(self, pending_request: PendingRequest, error: Exception) -> None:
        """Answers a request with an error, unless it has an answer already, and drops its state."""
        if not pending_request.future.done():
            pending_request.future.set_exception(error)
            forget_request(self, pending_request)


def router_kwargs(
    *, policy: str, expiration_s: float, forget_after_s: float, report_period_s: float, seed: int | None = None
) -> dict[str, Any]:
    """Returns the router's options as JSON types, for Serve's `request_router_kwargs`."""
    return {
        "policy": policy,
        "expiration_s": expiration_s,
        "forget_after_s": forget_after_s,
        "report_period_s": report_period_s,
        "seed": seed,
    }


def worker_rows(handle: DeploymentHandle[Any]) -> list[WorkerRow]:
    """Returns the worker table of the handle's router in this process; empty before its first update. Thread-safe."""
    request_router = router_of(handle)
    return request_router.rows() if request_router is not None else []


def worker_cards(handle: DeploymentHandle[Any]) -> list[ModelCard]:
    """Returns the models of the handle's live workers, as known in this process. Thread-safe."""
    request_router = router_of(handle)
    return request_router.cards() if request_router is not None else []


def worker_places(handle: DeploymentHandle[Any]) -> int:
    """Returns how many requests the handle's workers can hold, as known in this process. Thread-safe."""
    request_router = router_of(handle)
    return request_router.places() if request_router is not None else 0


def has_workers(handle: DeploymentHandle[Any]) -> bool:
    """Whether a worker of the handle might take a request, as known in this process. Thread-safe."""
    request_router = router_of(handle)
    return request_router is not None and request_router.has_workers()


def worker_replicas(handle: DeploymentHandle[Any]) -> list[RunningReplica]:
    """Returns the handle's workers that Serve has not given up, as known in this process. Thread-safe."""
    request_router = router_of(handle)
    return list(request_router.curr_replicas.values()) if request_router is not None else []


async def stands_still(handle: DeploymentHandle[Any], actor: str) -> bool:
    """Whether a worker of the handle has stopped responding while another one responds, as seen in this process."""
    request_router = router_of(handle)
    return request_router is not None and await request_router.stands_still(actor)


def _worker_id(replica: RunningReplica) -> str:
    return str(replica.replica_id.unique_id)


def _request_of(pending_request: PendingRequest | None) -> GenerateRequest | None:
    """The GenerateRequest of a call; None for other calls."""
    request = pending_request.args[0] if pending_request is not None and pending_request.args else None
    return request if isinstance(request, GenerateRequest) else None
