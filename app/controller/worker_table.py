"""The worker table: what the controller knows of each worker, and which workers are alive.

No Ray, and no clock of its own: callers pass seconds of a monotonic clock. A report counts only if its heartbeat has
changed, and its age is measured by the reader's clock, so the clocks of two machines need not agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.messages.model_card import ModelCard
from app.messages.requests import GenerateRequest
from app.messages.workers import WorkerFacts, WorkerReport, WorkerRow


@dataclass(slots=True)
class _Entry:
    facts: WorkerFacts
    report: WorkerReport | None
    heard_at_s: float
    present: bool = True


class WorkerTable:
    """Rows by worker id. Not thread-safe for writing; `rows` may be called from any thread."""

    def __init__(self, *, expiration_s: float, forget_after_s: float) -> None:
        self._expiration_s = expiration_s
        self._forget_after_s = forget_after_s
        self._entries: dict[str, _Entry] = {}

    def update(self, workers: Mapping[str, tuple[WorkerFacts, WorkerReport | None]], now_s: float) -> set[str]:
        """Takes Serve's current list of workers: adds new ones, records reports, and marks absent ones as gone.

        Returns the ids of the workers that have reported since the last call.
        """
        reported: set[str] = set()
        for worker_id, (facts, report) in workers.items():
            entry = self._entries.get(worker_id)
            if entry is None:
                self._entries[worker_id] = _Entry(facts, report, now_s)
                if report is not None:
                    reported.add(worker_id)
                continue
            entry.facts, entry.present = facts, True
            if report is not None and (entry.report is None or report.heart_beat != entry.report.heart_beat):
                entry.report, entry.heard_at_s = report, now_s
                reported.add(worker_id)
        for worker_id, entry in list(self._entries.items()):
            if worker_id not in workers:
                entry.present = False
                if now_s - entry.heard_at_s > self._expiration_s + self._forget_after_s:
                    del self._entries[worker_id]
        return reported

    def known(self, worker_id: str) -> tuple[WorkerFacts | None, WorkerReport | None]:
        """The worker's facts and its last report, each None if unknown."""
        entry = self._entries.get(worker_id)
        return (None, None) if entry is None else (entry.facts, entry.report)

    def heard(self, worker_id: str, now_s: float) -> None:
        """Records that the worker answered a request or a probe, which counts as a report."""
        entry = self._entries.get(worker_id)
        if entry is not None:
            entry.heard_at_s = now_s

    def lost(self, worker_id: str) -> None:
        """Records that the worker's process has died."""
        entry = self._entries.get(worker_id)
        if entry is not None:
            entry.present = False

    def is_alive(self, worker_id: str, now_s: float) -> bool:
        """Whether the worker is in Serve's list and has reported within EXPIRATION."""
        entry = self._entries.get(worker_id)
        return entry is not None and entry.present and now_s - entry.heard_at_s <= self._expiration_s

    def cards(self, now_s: float) -> list[ModelCard]:
        """The model of each live worker, in the order in which the workers came."""
        entries = list(self._entries.items())
        return [entry.facts.model for worker_id, entry in entries if self.is_alive(worker_id, now_s)]

    def places(self) -> int:
        """How many requests the workers in Serve's list can hold, running and waiting.

        Silent workers count: perhaps only their reports are lost, and the router probes them.
        """
        present = [entry.facts for entry in list(self._entries.values()) if entry.present]
        return sum(facts.max_running + facts.max_waiting for facts in present)

    def has_present(self) -> bool:
        """Whether Serve lists a worker whose process is not known to have died, silent or not."""
        return any(entry.present for entry in list(self._entries.values()))

    def may_run(self, worker_id: str, request: GenerateRequest) -> bool:
        """Whether the worker runs the model that the request was planned for, with as long a context."""
        entry = self._entries.get(worker_id)
        return entry is None or _may_run(entry, request)

    def is_replaced(self, request: GenerateRequest, now_s: float) -> bool:
        """Whether the request's model had workers, and newer live ones run another model.

        Serve starts no worker of the older one again.
        """
        had_workers = False
        for worker_id, entry in list(self._entries.items()):  # oldest first
            if _may_run(entry, request):
                had_workers = True
                if self.is_alive(worker_id, now_s):
                    return False
            elif had_workers and self.is_alive(worker_id, now_s):
                return True
        return False

    def arithmetic(self, worker_id: str) -> str:
        """`WorkerFacts.arithmetic`; empty for an unknown worker."""
        entry = self._entries.get(worker_id)
        return entry.facts.arithmetic if entry is not None else ""

    def speed(self, worker_id: str) -> float:
        """Tokens per second; 1.0 for an unknown worker, so that all such are equal."""
        entry = self._entries.get(worker_id)
        return entry.facts.speed if entry is not None else 1.0

    def of_batches(self, worker_id: str) -> int:
        """How many of the worker's requests are of batches, as it has last reported."""
        entry = self._entries.get(worker_id)
        return 0 if entry is None or entry.report is None else entry.report.batch

    def rows(self, queue_lengths: Mapping[str, int], now_s: float) -> list[WorkerRow]:
        """The table, live workers first. A worker that is gone stays for `forget_after_s`."""
        rows = [
            self._row(worker_id, entry, queue_lengths.get(worker_id, 0), now_s)
            for worker_id, entry in list(self._entries.items())
            if entry.present or now_s - entry.heard_at_s <= self._expiration_s + self._forget_after_s
        ]
        return sorted(rows, key=lambda row: (row.state != "alive", row.state != "stale", row.worker_id))

    def _row(self, worker_id: str, entry: _Entry, queue_length: int, now_s: float) -> WorkerRow:
        alive = self.is_alive(worker_id, now_s)
        report = entry.report or WorkerReport(0.0, 0, 0, 0, 0)
        return WorkerRow(
            worker_id=worker_id,
            node=entry.facts.node,
            pid=entry.facts.pid,
            model_names=(entry.facts.model.name,),
            speed=entry.facts.speed,
            queue_length=queue_length if entry.present else 0,
            check_heart_beat=alive,
            last_heart_beat=report.heart_beat,
            state="alive" if alive else "stale" if entry.present else "gone",
            running=report.running,
            waiting=report.waiting,
            batch=report.batch,
            kv_pages=report.kv_pages,
            kv_pages_free=report.kv_pages_free,
            kv_pages_cached=report.kv_pages_cached,
            computed_tokens=report.computed_tokens,
            cached_tokens=report.cached_tokens,
            generated_tokens=report.generated_tokens,
            preemptions=report.preemptions,
            cpus=entry.facts.cpus,
            numa_node=entry.facts.numa_node,
            memory_bound=entry.facts.memory_bound,
            max_context_tokens=entry.facts.max_context_tokens,
            tier=entry.facts.tier,
            ready_since=entry.facts.ready_since,
            max_running=entry.facts.max_running,
            max_waiting=entry.facts.max_waiting,
            generated_tokens_per_s=report.generated_tokens_per_s,
            admitted=report.admitted,
            queued_s=report.queued_s,
            saved_bytes=report.saved_bytes,
            max_saved_bytes=entry.facts.max_saved_bytes,
            capacity=entry.facts.capacity,
            asleep=report.asleep,
            draft=entry.facts.draft,
            drafts=report.drafts,
            drafts_failed=report.drafts_failed,
        )


def _may_run(entry: _Entry, request: GenerateRequest) -> bool:
    if request.model_identity not in ("", entry.facts.model.identity):
        return False
    tokens = len(request.prompt_token_ids) + request.max_new_tokens
    return request.window is not None or tokens <= entry.facts.max_context_tokens
