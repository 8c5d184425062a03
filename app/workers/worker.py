"""The worker: a Serve deployment that owns one engine, on one NUMA node's cores, a share of them, or all nodes' cores.

It pins itself before any compute thread starts: a replica is not built on the main thread, but threads inherit the
affinity of the thread that starts them. Then it loads the model, warms up, measures its speed, and reports to the
controller. `app.controller.worker_client` says how its streams are called and cancelled. Knows nothing of text or HTTP,
nor of other workers.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from app.core_files import leave_no_core_files
from app.engine.engine import Engine
from app.engine.pages.page_names import CACHE_SECRET_BYTES
from app.engine.speculative.draft_source import DraftSource
from app.engine.stream import AsyncEngine
from app.messages.bundle import Bundle
from app.messages.crashes import CRASHES_FOLDER, mark_crashes
from app.messages.direct_line import LINES_FOLDER, connect
from app.messages.failures import EngineStoppedError, ModelReplacedError, PlaceWantedBackError
from app.messages.memory import SavedPages
from app.messages.model_card import ModelCard
from app.messages.requests import GenerateRequest, Priority
from app.messages.start import STARTS_FOLDER, StartPhase, note_phase
from app.messages.workers import WorkerFacts, WorkerReport
from app.ray_internals import keep_on_loopback, machines, own_actor, own_deployment, session_folder
from app.sealing.sealed_model import SealedModel, model_identity, open_model
from app.settings.applications import ModelApplicationSettings
from app.settings.worker import WorkerSettings
from app.workers.admission import Admission, Place
from app.workers.awake_models import AwakeModels, most_awake_bytes
from app.workers.capacity import worker_capacity
from app.workers.core_claims import Holder, claim_slot
from app.workers.core_turns import CoreTurns
from app.workers.drafts import DraftFactory, drafting_bytes, load_drafts
from app.workers.load import RunnerFactory, load_model, make_constraints, with_allowed_binding
from app.workers.machine_memory import (
    available_memory_bytes,
    check_room_beside,
    machine_memory_bytes,
    needed_bytes,
)
from app.workers.model_sleep import WAKE_TIMEOUT_S, ModelSleep, SleepingEngine
from app.workers.numa import Slot, core_share, cpu_quota, numa_nodes, pin_this_thread, spanning_slot, worker_slots
from app.workers.packed_header import read_header
from app.workers.refusals import log_no_refusals
from app.workers.saved_pages import StoreFactory, memory_options, open_store, save_what_is_left
from app.workers.warm_up import warm_up

_CLAIM_TIMEOUT_S = 15.0
"""A worker that is being replaced needs a moment to end. After this time Serve tries again anyway."""
WANTED_BACK = "Others need the place of this request of a batch. It goes on later."


class Worker:
    """One engine behind a bounded number of places. `app.deploy` makes it a deployment; Ray Serve calls its methods."""

    def __init__(
        self,
        settings: ModelApplicationSettings,
        make_runner: RunnerFactory = load_model,
        make_store: StoreFactory = open_store,
        make_drafts: DraftFactory = load_drafts,
    ) -> None:
        """Returns when the engine is warm.

        Raises NoFreeCoresError, NoRoomError, SealedModelError, another ValueError, and what `make_runner`,
        `make_store` and `make_drafts` raise.
        """
        place = self._take_place(settings)
        settings, worker, slot, threads = place.settings, place.settings.worker, place.slot, place.threads
        files, card, starts = place.files, place.card, place.starts
        runner = make_runner(settings, files, slot, threads)
        drafts = make_drafts(settings, files, slot, threads, runner)
        header = read_header(files)
        experts = None if header is None else header.expert_reads
        self._store = None if settings.memory.folder is None else make_store(settings, files, runner)
        concurrent = min(worker.max_concurrent_requests, runner.max_sequences)
        self._engine = Engine(
            runner,
            prompt_chunk_tokens=settings.engine.prompt_chunk_tokens,
            prompt_pause_s=settings.engine.prompt_pause_s,
            most_of_caller=concurrent,
            prefix_cache=settings.engine.prefix_cache,
            cache_secret=os.urandom(CACHE_SECRET_BYTES),  # no cached page outlives this process
            guess_tokens=settings.engine.guess_tokens,
            drafts=drafts,
            page_store=self._store,
            memory=memory_options(settings.memory),
            experts=experts,
            turns=self._turns,
        )
        self._memory = self._engine.memory
        self._engine.start()
        self._streams = AsyncEngine(self._engine)
        self._connecting: set[str] = set()
        self._constraints = make_constraints(files, runner)
        self._admission = Admission(
            max_concurrent=worker.max_concurrent_requests, max_queued=worker.max_queued_requests
        )
        self._kv_pages = runner.kv_pages
        note_phase(starts, card.name, StartPhase.WARMING_UP)
        longest_prompt = runner.max_context_tokens - worker.warm_up_new_tokens
        warm = warm_up(
            self._engine,
            vocab_size=runner.vocab_size,
            prompt_tokens=min(worker.warm_up_prompt_tokens, longest_prompt),
            new_tokens=worker.warm_up_new_tokens,
            concurrent=min(4, concurrent),
            first_prompt_tokens=min(0 if experts is None else experts.tokens_to_touch_all, longest_prompt),
        )
        note_phase(starts, card.name, StartPhase.READY)
        self._sleep = self._make_sleep(self._engine, settings)
        self._facts = replace(
            place.facts(
                runner, speed=warm.speed, max_context_tokens=self._engine.longest_tokens, max_running=concurrent
            ),
            max_saved_bytes=None if self._store is None else settings.memory.bytes,
            capacity=worker_capacity(
                files,
                settings.engine,
                warm,
                kv_pages=runner.kv_pages // len(runner.group_windows),
                keeps_windows=any(runner.group_windows),
            ),
            draft=_draft_name(settings, drafts),
        )

    def _take_place(self, settings: ModelApplicationSettings, *, beside: bool = False) -> "WorkerPlace":
        """Claims cores and opens the model. beside: on the cores of another worker, taking turns with it.

        Raises as the constructor does.
        """
        leave_no_core_files()
        log_no_refusals(logging.getLogger("ray.serve"))
        keep_on_loopback()
        mark_crashes(session_folder(CRASHES_FOLDER), own_actor())
        settings = with_allowed_binding(settings)
        worker = settings.worker
        nodes = numa_nodes(sorted(os.sched_getaffinity(0)))
        slots = [spanning_slot(nodes)] if worker.numa == "all" else worker_slots(nodes, _cores_of_one(worker, nodes))
        may_sleep = settings.sleep.after_s is not None
        holder = Holder(*own_deployment(), may_share=worker.surges, sleeps=may_sleep, beside=beside)
        cores = session_folder("redoubt-cores")
        self._claim = claim_slot(slots, cores, _CLAIM_TIMEOUT_S, holder)
        slot = self._claim.slot
        pin_this_thread(slot)
        threads = worker.threads or min(len(slot.cpus), cpu_quota() or len(slot.cpus))
        if threads > len(slot.cpus):
            raise ValueError(f"worker.threads is {threads}, but the worker has {len(slot.cpus)} cores")
        card, starts = settings.model_card(), session_folder(STARTS_FOLDER)
        note_phase(starts, card.name, StartPhase.LOADING)
        files = open_model(card)
        identity = model_identity(files)
        kv_bytes = 0 if beside else settings.engine.kv_memory_bytes + sum(drafting_bytes(settings, files))
        if self._claim.is_shared:
            check_room_beside(files, kv_bytes, available_memory_bytes())
        self._models = AwakeModels(
            session_folder("awake"),
            card.name,
            needed_bytes(files, kv_bytes),
            most_awake_bytes(settings.sleep, machine_memory_bytes()),
        )
        self._models.claim(WAKE_TIMEOUT_S if may_sleep else None)
        self._turns = CoreTurns(cores, slot)
        self._drain_timeout_s = worker.drain_timeout_s
        return WorkerPlace(settings, slot, threads, files, card, identity, starts)

    def _make_sleep(self, engine: SleepingEngine, settings: ModelApplicationSettings) -> ModelSleep | None:
        """Starts to watch whether the model may fall asleep; None: it never does."""
        if settings.sleep.after_s is None:
            return None
        sleep = ModelSleep(
            engine, self._models, after_s=settings.sleep.after_s, save_timeout_s=settings.worker.drain_timeout_s
        )
        self._watching = asyncio.get_running_loop().create_task(sleep.watch())
        return sleep

    async def generate(self, request: GenerateRequest, reader: str) -> AsyncGenerator[Bundle, None]:
        """Streams the request's output, and parts of other requests of the same reader.

        reader: name of the calling ingress.

        A model that sleeps wakes. Raises ModelReplacedError, QueueFullError, PlaceWantedBackError, ConstraintError, and
        what `AsyncEngine.stream` raises.
        """
        if request.model_identity not in ("", self._facts.model.identity):
            raise ModelReplacedError("The model was replaced by another version. Try again.")
        awake = nullcontext() if self._sleep is None else self._sleep.awake()
        with self._place(request) as place:
            async with awake:
                constraint = None
                if request.grammar is not None and self._constraints is not None:
                    constraint = await self._constraints.make(request.grammar)
                await self._connect(reader)
                if place is not None and place.is_wanted_back:
                    raise PlaceWantedBackError(WANTED_BACK)
                async with aclosing(self._streams.stream(request, constraint, reader=reader)) as bundles:
                    is_first = True
                    async for bundle in bundles:
                        yield _signed(bundle, request, self._facts.arithmetic) if is_first else bundle
                        is_first = False

    def _place(self, request: GenerateRequest) -> AbstractContextManager[Place | None]:
        if request.priority is not Priority.BATCH:
            return self._admission.place()
        error = PlaceWantedBackError(WANTED_BACK)
        return self._admission.place_of_batch(lambda: self._streams.give_up(request.request_id, error))

    async def flush_memory(self, owner: str) -> SavedPages:
        """Saves the user's pages now, so that they would survive a loss of power. Raises EngineStoppedError.

        owner: `MemoryGrant.owner` of the user, here and below.
        """
        memory = self._memory
        return SavedPages(0, 0, 0) if memory is None else await asyncio.wrap_future(memory.flush(owner))

    async def clear_memory(self, owner: str) -> SavedPages:
        """Saves as `flush_memory`, then removes the user's pages from memory, because the user has logged out."""
        saved = await self.flush_memory(owner)
        if self._memory is not None:
            await asyncio.wrap_future(self._memory.clear(owner))
        return saved

    async def forget_memory(self, owner: str, key_id: bytes | None) -> int:
        """Removes the user's pages from memory and from disk: those sealed with that key, or all.

        Returns how many files were removed. The key must be destroyed before. Raises OSError for a disk that fails,
        ValueError, EngineStoppedError.
        """
        if self._store is None or self._memory is None:
            return 0
        await asyncio.wrap_future(self._memory.drop(owner, key_id))
        return await asyncio.to_thread(self._store.folder.forget, owner, key_id)

    async def memory_use(self, owner: str) -> tuple[int, int]:
        """Number of pages that the user has on disk, and their bytes, of all models. Raises OSError, ValueError."""
        if self._store is None:
            return 0, 0
        use = await asyncio.to_thread(self._store.folder.use, owner)
        return use.pages, use.bytes

    def memory_statistics(self) -> dict[str, int]:
        """Counters of saved and loaded pages since the worker's start, by name; empty without a store."""
        if self._store is None or self._memory is None:
            return {}
        return asdict(self._memory.statistics()) | asdict(self._store.counts)

    async def _connect(self, reader: str) -> None:
        """Opens a direct line to that ingress, if it is on this machine and has none."""
        if reader in self._connecting or self._streams.has_line(reader):
            return
        self._connecting.add(reader)
        try:
            if (line := await connect(session_folder(LINES_FOLDER) / reader)) is not None:
                self._streams.attach(reader, line)
        finally:
            self._connecting.remove(reader)

    def check_health(self) -> None:
        """Raises if the engine has stopped; Serve then replaces the worker."""
        if not self._engine.healthy:
            raise EngineStoppedError("the engine has stopped")

    def record_replica_metadata(self) -> dict[str, Any]:
        """Returns WorkerFacts, which Serve passes on to every router once."""
        return self._facts.to_wire()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns what Serve adds to its own count of requests (`app.controller.autoscaling`)."""
        return {"batch": float(self._admission.of_batches)}

    def record_routing_stats(self) -> dict[str, Any]:
        """Returns WorkerReport, the heartbeat, which Serve polls and passes on to every router when it has changed."""
        self.check_health()
        engine = self._engine.statistics()
        batch = self._admission.of_batches
        here = self._admission.taken - batch
        # The engine's count dates from its last step.
        waiting = min(max(engine.waiting, here - self._facts.max_running), here)
        return WorkerReport(
            heart_beat=round(time.time(), 3),
            running=here - waiting,
            waiting=waiting,
            batch=batch,
            kv_pages=self._kv_pages,
            kv_pages_free=engine.pages_free,
            kv_pages_cached=engine.pages_cached,
            computed_tokens=engine.computed_tokens,
            cached_tokens=engine.cached_tokens,
            generated_tokens=engine.generated_tokens,
            preemptions=engine.preemptions,
            generated_tokens_per_s=round(engine.generated_tokens_per_s, 1),
            admitted=engine.begun,
            queued_s=round(engine.queued_s, 3),
            saved_bytes=None if self._store is None else self._store.folder.known_bytes,
            asleep=self._sleep is not None and self._sleep.is_asleep,
            drafts={kind: list(counts) for kind, counts in engine.drafts.items()},
            drafts_failed=engine.drafts_failed,
        ).to_wire()

    def __del__(self) -> None:
        """Shuts the worker down. Serve calls this after its requests have had time to finish."""
        if getattr(self, "_sleep", None) is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._watching.get_loop().call_soon_threadsafe(self._watching.cancel)
        if hasattr(self, "_engine"):
            save_what_is_left(self._engine, self._drain_timeout_s)
            self._engine.stop()
        if hasattr(self, "_store") and self._store is not None:
            self._store.close()
        if hasattr(self, "_constraints") and self._constraints is not None:
            self._constraints.close()
        if (turns := getattr(self, "_turns", None)) is not None:
            turns.close()
        if hasattr(self, "_models"):
            self._models.release()
        if hasattr(self, "_claim"):
            self._claim.release()


def _draft_name(settings: ModelApplicationSettings, drafts: DraftSource | None) -> str | None:
    """What drafts, if anything does: the folder's name of `model.draft`, or the kind of a layer of the model itself."""
    if drafts is None:
        return None
    return drafts.kind if settings.model.draft is None else Path(settings.model.draft).name


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What a worker has before its model is loaded."""

    settings: ModelApplicationSettings
    slot: Slot
    threads: int
    files: Path | SealedModel
    card: ModelCard
    identity: str
    starts: Path
    """Where it notes how far its start is."""

    def facts(self, model: "Loaded", *, speed: float, max_context_tokens: int, max_running: int) -> WorkerFacts:
        """Returns the facts of a worker that is ready. speed: in tokens per second."""
        worker = self.settings.worker
        return WorkerFacts(
            node=socket.gethostname(),
            pid=os.getpid(),
            model=replace(self.card, identity=self.identity),
            speed=float(f"{speed:.3g}"),
            cpus=self.slot.cpus,
            numa_node=self.slot.numa_node,
            memory_bound=worker.bind_memory,
            max_context_tokens=max_context_tokens,
            tier=model.tier,
            arithmetic=model.arithmetic,
            ready_since=int(time.time()),
            max_running=max_running,
            max_waiting=worker.max_queued_requests + worker.max_concurrent_requests - max_running,
            max_saved_bytes=None,
        )


class Loaded(Protocol):
    """A native model, or an encoder."""

    @property
    def tier(self) -> str: ...
    @property
    def arithmetic(self) -> str: ...


def _signed(bundle: Bundle, request: GenerateRequest, arithmetic: str) -> Bundle:
    """Adds the worker's arithmetic to the request's first bundle."""
    return tuple(
        part._replace(delta=part.delta._replace(arithmetic=arithmetic))
        if part.request_id == request.request_id
        else part
        for part in bundle
    )


def _cores_of_one(worker: WorkerSettings, nodes: Sequence[Slot]) -> int | None:
    """How many cores each worker of this machine gets; None: all of a node. Raises ValueError if there are too few.

    Ray spreads workers evenly over machines, except those with custom resources, which decide where they fit.
    """
    if worker.cpus_per_worker is not None or worker.ray_resources:
        return worker.cpus_per_worker
    return core_share([len(node.cpus) for node in nodes], -(-worker.most // machines()))
