"""The worker: a Serve deployment that owns one engine on one NUMA node's cores, a share of them, or on all nodes'.

It pins itself before any compute thread starts (a replica is not built on the main thread, but threads
inherit the mask of the one that starts them), warms up, measures its speed, and reports to the controller.
How its streams are called and cancelled is told in `worker_client`. It knows nothing of text, HTTP or of the
other workers.
"""

import json
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.admission import Admission
from app.direct_line import connect
from app.engine.bundle import Bundle
from app.engine.engine import Engine
from app.engine.stream import AsyncEngine
from app.engine.types import EngineStoppedError, GenerateRequest, ModelRunner
from app.loopback import keep_on_loopback
from app.model_card import ModelCard
from app.numa import (
    Slot,
    claim_slot,
    cpu_quota,
    numa_nodes,
    pin_this_thread,
    spanning_slot,
    thread_places,
    worker_slots,
)
from app.ray_session import LINES, session_folder
from app.settings import WorkersSettings
from app.warm_up import warm_up
from app.worker_table import WorkerFacts, WorkerReport

if TYPE_CHECKING:
    from app.constraints import Constraints

RunnerFactory = Callable[[WorkersSettings, Slot, int], ModelRunner]
"""(settings, cores, threads) -> the loaded model."""

# A worker that is being replaced needs a moment to die; past that Serve tries again anyway.
_CLAIM_TIMEOUT_S = 15.0


def load_model(settings: WorkersSettings, slot: Slot, threads: int) -> ModelRunner:
    """The native model on these cores, its memory on their node. Raises what `NativeRunner` raises."""
    from app.engine.runner import NativeRunner, kv_pages_within
    from kernels import _native  # here, so that only a worker's process loads the extension

    model, engine = settings.model, settings.engine
    types = engine.compute_type, engine.prompt_compute_type
    kv_type = _native.Model.chosen_kv_type(model.folder, engine.kv_type, *types)
    cpus, nodes = thread_places(slot, threads)
    if settings.worker.bind_memory:
        if nodes:
            _native.interleave_memory(sorted(set(nodes)))
        else:
            _native.bind_memory_to_node(slot.numa_node)
    return NativeRunner(
        model.folder,
        threads=threads,
        cpus=cpus,
        nodes=nodes,
        bind_weights=settings.worker.bind_memory,
        compute_type=engine.compute_type,
        prompt_compute_type=engine.prompt_compute_type,
        kv_type=kv_type,
        weight_memory=engine.weight_memory,
        kv_pages=kv_pages_within(model.folder, kv_type, engine.kv_memory_bytes),
        max_sequences=settings.worker.max_concurrent_requests,
        max_step_tokens=engine.max_step_tokens,
        max_context_tokens=_context_tokens(Path(model.folder), engine.max_context_tokens),
    )


class Worker:
    """One engine behind a semaphore. `build` makes it a deployment; Serve calls what nobody here does."""

    def __init__(self, settings: WorkersSettings, make_runner: RunnerFactory = load_model) -> None:
        """Returns when the first request will be as fast as the tenth; raises if the model can't be had."""
        keep_on_loopback()
        worker = settings.worker
        nodes = numa_nodes(sorted(os.sched_getaffinity(0)))
        slots = [spanning_slot(nodes)] if worker.numa == "all" else worker_slots(nodes, worker.cpus_per_worker)
        self._claim = claim_slot(slots, session_folder("redoubt-cores"), _CLAIM_TIMEOUT_S)
        slot = self._claim.slot
        pin_this_thread(slot)
        threads = worker.threads or min(len(slot.cpus), cpu_quota() or len(slot.cpus))
        if threads > len(slot.cpus):
            raise ValueError(f"worker.threads is {threads}, but the worker has {len(slot.cpus)} cores")
        runner = make_runner(settings, slot, threads)
        self._engine = Engine(
            runner,
            prompt_chunk_tokens=settings.engine.prompt_chunk_tokens,
            prompt_pause_s=settings.engine.prompt_pause_s,
            prefix_cache=settings.engine.prefix_cache,
            guess_tokens=settings.engine.guess_tokens,
        )
        self._engine.start()
        self._streams = AsyncEngine(self._engine)
        self._connecting: set[str] = set()
        self._constraints = make_constraints(settings, runner)
        self._admission = Admission(
            max_concurrent=worker.max_concurrent_requests, max_queued=worker.max_queued_requests
        )
        self._kv_pages = runner.kv_pages
        longest_prompt = runner.max_context_tokens - worker.warm_up_new_tokens
        speed = warm_up(
            self._engine,
            vocab_size=runner.vocab_size,
            prompt_tokens=min(worker.warm_up_prompt_tokens, longest_prompt),
            new_tokens=worker.warm_up_new_tokens,
            concurrent=min(4, worker.max_concurrent_requests),
        )
        self._facts = WorkerFacts(
            node=socket.gethostname(),
            pid=os.getpid(),
            model=ModelCard.of(settings),
            speed=float(f"{speed:.3g}"),
            cpus=slot.cpus,
            numa_node=slot.numa_node,
            max_context_tokens=runner.max_context_tokens,
        )

    async def generate(self, request: GenerateRequest, reader: str) -> AsyncGenerator[Bundle, None]:
        """Streams the request's output, and parts of others that `reader` (an ingress) has asked for.

        Raises QueueFullError, and what `AsyncEngine.stream` raises.
        """
        async with self._admission.place():
            constraint = None
            if request.grammar is not None and self._constraints is not None:
                constraint = await self._constraints.make(request.grammar)
            await self._connect(reader)
            async with aclosing(self._streams.stream(request, constraint, reader=reader)) as bundles:
                async for bundle in bundles:
                    yield bundle

    async def _connect(self, reader: str) -> None:
        """A direct line to that ingress, if it is on this machine and has none (or its last one broke)."""
        if reader in self._connecting or self._streams.has_line(reader):
            return
        self._connecting.add(reader)
        try:
            if (line := await connect(session_folder(LINES) / reader)) is not None:
                self._streams.attach(reader, line)
        finally:
            self._connecting.remove(reader)

    def check_health(self) -> None:
        """Serve replaces a worker whose engine has stopped."""
        if not self._engine.healthy:
            raise EngineStoppedError("the engine has stopped")

    def record_replica_metadata(self) -> dict[str, Any]:
        """What Serve passes on to every router once: WorkerFacts."""
        return self._facts.to_wire()

    def record_routing_stats(self) -> dict[str, Any]:
        """The heartbeat: Serve polls it, and passes on to every router what changed, which it always does."""
        self.check_health()
        engine = self._engine.statistics()
        return WorkerReport(
            heart_beat=round(time.time(), 3),
            running=self._admission.running,
            waiting=self._admission.waiting,
            kv_pages=self._kv_pages,
            kv_pages_free=engine.pages_free,
            kv_pages_cached=engine.pages_cached,
            computed_tokens=engine.computed_tokens,
            cached_tokens=engine.cached_tokens,
            generated_tokens=engine.generated_tokens,
            preemptions=engine.preemptions,
        ).to_wire()

    def __del__(self) -> None:
        """Serve calls this when the worker has to go, after its requests have had time to finish."""
        if hasattr(self, "_engine"):
            self._engine.stop()
        if hasattr(self, "_constraints") and self._constraints is not None:
            self._constraints.close()
        if hasattr(self, "_claim"):
            self._claim.release()


def make_constraints(settings: WorkersSettings, runner: ModelRunner) -> "Constraints | None":
    """What compiles schemas for the model; None for a folder without a tokenizer (a test's)."""
    folder = Path(settings.model.folder)
    if not (folder / "tokenizer.json").is_file():
        return None
    from app.constraints import Constraints  # here, so that only a worker's process loads the library

    return Constraints(folder, runner.vocab_size)


def _context_tokens(folder: Path, wanted: int | None) -> int:
    """The longest context: what is wanted, within what the model was trained for."""
    trained = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"])
    return min(wanted or trained, trained)
