"""The worker table and the served models as series: what each worker reported in its last heartbeat.

A lost worker keeps its `up`, which is 0, as long as it is in the table; its other series end. A served model without
workers is 0 too, so that an alert can tell a lost model from a service that is not scraped. It knows neither Ray nor
the engine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.messages.workers import WorkerRow, WorkerState

_Value = Callable[[WorkerRow], float]
_GAUGES: dict[str, tuple[str, _Value]] = {
    "requests_running": ("Sequences that it computes.", lambda row: row.running),
    "requests_running_limit": ("The most sequences that it computes at a time.", lambda row: row.max_running),
    "requests_waiting": ("Sequences that wait for a place.", lambda row: row.waiting),
    "requests_batch": ("Requests of batches, which run when no others are there.", lambda row: row.batch),
    "requests_waiting_limit": ("The most sequences that may wait; more are refused.", lambda row: row.max_waiting),
    "kv_pages": ("Pages of keys and values.", lambda row: row.kv_pages),
    "kv_pages_used": ("Pages that sequences hold.", lambda row: row.kv_pages - row.kv_pages_free),
    "kv_pages_cached": ("Pages that later prompts may find.", lambda row: row.kv_pages_cached),
    "drafts_failed": ("Whether drafting has failed, so that no model drafts any more.", lambda row: row.drafts_failed),
    "asleep": ("Whether its model has given its memory back until its next request.", lambda row: row.asleep),
}
_COUNTERS: dict[str, tuple[str, _Value]] = {
    "computed_tokens": ("Tokens that went through the model.", lambda row: row.computed_tokens),
    "cached_tokens": ("Prompt tokens that the prefix cache had.", lambda row: row.cached_tokens),
    "generated_tokens": ("Tokens made.", lambda row: row.generated_tokens),
    "preemptions": ("Sequences that gave their pages back.", lambda row: row.preemptions),
}
_DRAFTS = (
    ("drafted_tokens", "Tokens drafted, and computed to be checked."),
    ("right_drafted_tokens", "Drafted tokens that were right."),
)
"""As in `WorkerRow.drafts`."""
_LABELS = ("worker", "model")


class WorkerSeries(Collector):
    """Builds the series anew for each scrape."""

    def __init__(self, workers: Callable[[], Sequence[WorkerRow]], models: Callable[[], Iterable[str]]) -> None:
        """workers: returns the worker table. models: returns the served names, with or without workers."""
        self._workers = workers
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yields the series."""
        rows = self._workers()
        yield from _of_models(rows, self._models())
        up = GaugeMetricFamily("redoubt_worker_up", "Whether it reports, and gets requests.", labels=_LABELS)
        for row in rows:
            up.add_metric(_labels(row), row.check_heart_beat)
        yield up
        there = [row for row in rows if row.state != "gone"]
        for name, (description, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"redoubt_worker_{name}", description, labels=_LABELS)
            for row in there:
                gauge.add_metric(_labels(row), value(row))
            yield gauge
        for name, (description, value) in _COUNTERS.items():
            counter = CounterMetricFamily(f"redoubt_worker_{name}", description, labels=_LABELS)
            for row in there:
                counter.add_metric(_labels(row), value(row))
            yield counter
        for place, (name, description) in enumerate(_DRAFTS):
            counter = CounterMetricFamily(f"redoubt_worker_{name}", description, labels=(*_LABELS, "kind"))
            for row in there:
                for kind, counts in row.drafts.items():
                    counter.add_metric((*_labels(row), kind), counts[place])
            yield counter
        waits = SummaryMetricFamily(
            "redoubt_worker_queue_seconds", "How long sequences waited for their places.", labels=_LABELS
        )
        for row in there:
            waits.add_metric(_labels(row), count_value=row.admitted, sum_value=row.queued_s)
        yield waits


def _labels(row: WorkerRow) -> tuple[str, str]:
    return row.worker_id, row.model_names[0]


def _of_models(rows: Sequence[WorkerRow], served: Iterable[str]) -> Iterator[Metric]:
    states: tuple[WorkerState, ...] = get_args(WorkerState)
    # A renamed model has workers that are gone; it is not down.
    names = dict.fromkeys([*served, *(row.model_names[0] for row in rows if row.state != "gone")])
    up = GaugeMetricFamily("redoubt_model_up", "Whether a worker of the model takes requests.", labels=("model",))
    workers = GaugeMetricFamily(
        "redoubt_model_workers",
        "Workers of the model: alive; stale (silent, without requests); gone (lost or removed a moment ago).",
        labels=("model", "state"),
    )
    for name in names:
        of_model = [row for row in rows if row.model_names[0] == name]
        up.add_metric((name,), any(row.check_heart_beat for row in of_model))
        for state in states:
            workers.add_metric((name, state), sum(row.state == state for row in of_model))
    yield up
    yield workers
