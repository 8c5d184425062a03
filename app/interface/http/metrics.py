"""Metrics in Prometheus' text format.

No series is about a user, a key, a prompt or an answer. Labels are methods, routes, statuses, models, finish reasons
and workers only, and none takes its value from a request's text. HTTP is counted per ingress replica; workers report
their counts in their heartbeats. It knows neither Ray nor the engine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from platform import python_version
from time import perf_counter

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.interface.http.worker_series import WorkerSeries
from app.interface.request.observers import Observe, Observer
from app.messages.failures import InvalidRequestError, RequestTooLongError
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import BeamParams, GenerateRequest, Priority
from app.messages.workers import WorkerRow

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_NEXT_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_REASONS = ("stop", "length", "error", "closed")
_DURATION_S = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A client may send any word as a method; others are counted as "other"."""


class Metrics:
    """The series of one ingress replica. Thread-safe."""

    def __init__(
        self,
        workers: Callable[[], Sequence[WorkerRow]],
        models: Callable[[], Iterable[str]] = tuple,
        ingress_id: str = "",
        version: str = "",
    ) -> None:
        """workers: returns the worker table. models: returns the served names, with or without workers.

        version: Redoubt's.
        """
        self._all = CollectorRegistry()  # not the library's global one, which has Ray's series
        self._registry = registry = CollectorRegistry()
        self._all.register(_OfIngress(registry, ingress_id))
        self._all.register(WorkerSeries(workers, models))
        ProcessCollector(registry=registry)
        Gauge(
            "redoubt_build_info", "The service's version; always 1.", ["version", "python"], registry=registry
        ).labels(version, python_version()).set(1)
        self._open = Gauge("redoubt_open_requests", "HTTP requests that are being answered.", registry=registry)
        self._open_limit = Gauge("redoubt_open_requests_limit", "The most of them; more get 503.", registry=registry)
        self._requests = Counter(
            "redoubt_http_requests", "HTTP requests answered.", ["method", "route", "status"], registry=registry
        )
        self._sequences = Counter(
            "redoubt_sequences",
            "Sequences that have ended: stop, length, error; closed by a stop string, the only call or the client.",
            ["model", "reason"],
            registry=registry,
        )
        self._batch_sequences = Counter(
            "redoubt_batch_sequences",
            "Those of batches, which no other series of sequences, tokens and their times has.",
            ["model", "reason"],
            registry=registry,
        )
        self._batch_tokens = Counter(
            "redoubt_batch_generated_tokens", "Tokens made for batches.", ["model"], registry=registry
        )
        self._prompt_tokens = Counter(
            "redoubt_prompt_tokens", "Prompt tokens of sequences that began.", ["model"], registry=registry
        )
        self._cached_tokens = Counter(
            "redoubt_cached_prompt_tokens", "Those of them that the prefix cache had.", ["model"], registry=registry
        )
        self._generated_tokens = Counter(
            "redoubt_generated_tokens", "Tokens made, to where the output was cut off.", ["model"], registry=registry
        )
        self._first_token_s = Histogram(
            "redoubt_time_to_first_token_seconds",
            "From a sequence's request, waiting included, to its first token; not of beam searches, which end at once.",
            ["model"],
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self._next_token_s = Histogram(
            "redoubt_inter_token_seconds",
            "From one token to the next; of tokens that came together, their mean.",
            ["model"],
            buckets=_NEXT_TOKEN_S,
            registry=registry,
        )
        self._resumed = Counter(
            "redoubt_requests_resumed",
            "Sequences that went on with another worker: theirs crashed, was lost, or had to end.",
            ["model", "loss"],
            registry=registry,
        )
        self._duration_s = Histogram(
            "redoubt_http_request_duration_seconds",
            "From a request's head to its answer's last byte; of a client that left, until then.",
            ["route", "status"],
            buckets=_DURATION_S,
            registry=registry,
        )

        self._log_dropped = Counter(
            "redoubt_access_log_dropped", "Requests without a line, as the disk is full or slow.", registry=registry
        )

    def text(self) -> bytes:
        """Returns all series in the format `CONTENT_TYPE`."""
        return generate_latest(self._all)

    def watch_places(self, taken: Callable[[], int], limit: int) -> None:
        """Exports the number of open requests and their limit."""
        self._open.set_function(taken)
        self._open_limit.set(limit)

    def answered(self, method: str, route: str, status: int) -> None:
        """Counts an answered request; `route` has variables' names, never their values."""
        self._requests.labels(method if method in METHODS else "other", route, status).inc()

    def log_line_dropped(self) -> None:
        """Counts a line that could not be written to the access log. Thread-safe."""
        self._log_dropped.inc()

    def ended(self, route: str, status: int, duration_s: float) -> None:
        """Times an answer until its end, or until its client has gone; `route` as in `answered`."""
        self._duration_s.labels(route, f"{status // 100}xx").observe(duration_s)

    def counting(self, model: str) -> Observe:
        """Returns an observer that counts a model's sequences and their tokens."""
        sequences = {reason: self._sequences.labels(model, reason) for reason in _REASONS}
        prompt_tokens, cached_tokens = self._prompt_tokens.labels(model), self._cached_tokens.labels(model)
        generated_tokens = self._generated_tokens.labels(model)
        resumed = {loss: self._resumed.labels(model, loss) for loss in Loss}
        first_token_s, next_token_s = self._first_token_s.labels(model), self._next_token_s.labels(model)

        of_batches = self._counting_batches(model)

        def observer(request: GenerateRequest) -> Observer:
            if request.priority is Priority.BATCH:
                return of_batches()
            last_s = perf_counter()
            began = has_tokens = False
            reason = "closed"

            def saw(delta: TokenDelta) -> None:
                nonlocal last_s, began, has_tokens, reason
                for loss in delta.losses:
                    resumed[loss].inc()
                if not began and delta.has_output:
                    began = True
                    prompt_tokens.inc(len(request.prompt_token_ids))
                if delta.cached_tokens:
                    cached_tokens.inc(delta.cached_tokens)
                if isinstance(request.search, BeamParams):
                    # A beam search's answers come all at once, so there is no first token to time.
                    generated_tokens.inc(len(delta.token_ids) + sum(len(answer.token_ids) for answer in delta.more))
                elif delta.token_ids:
                    now_s = perf_counter()
                    if has_tokens:
                        next_token_s.observe((now_s - last_s) / len(delta.token_ids))
                    else:
                        first_token_s.observe(now_s - last_s)
                    last_s, has_tokens = now_s, True
                    generated_tokens.inc(len(delta.token_ids))
                reason = delta.finish_reason or reason

            def ended(error: BaseException | None) -> None:
                if not isinstance(error, (InvalidRequestError, RequestTooLongError)):  # which never began
                    sequences["error" if isinstance(error, Exception) else reason].inc()

            return Observer(saw, ended)

        return observer

    def _counting_batches(self, model: str) -> Callable[[], Observer]:
        """Returns what makes an observer of a batch's sequence, whose times nobody waits for."""
        sequences = {reason: self._batch_sequences.labels(model, reason) for reason in _REASONS}
        tokens = self._batch_tokens.labels(model)

        def observer() -> Observer:
            reason = "closed"

            def saw(delta: TokenDelta) -> None:
                nonlocal reason
                tokens.inc(len(delta.token_ids) + sum(len(answer.token_ids) for answer in delta.more))
                reason = delta.finish_reason or reason

            def ended(error: BaseException | None) -> None:
                if not isinstance(error, (InvalidRequestError, RequestTooLongError)):
                    sequences["error" if isinstance(error, Exception) else reason].inc()

            return Observer(saw, ended)

        return observer


class _OfIngress(Collector):
    """Adds the ingress's id to another registry's series: a scrape may reach any ingress, and each counts alone."""

    def __init__(self, registry: CollectorRegistry, ingress_id: str) -> None:
        self._registry = registry
        self._label = {"ingress": ingress_id}

    def collect(self) -> Iterator[Metric]:
        """Yields the labelled series."""
        for metric in self._registry.collect():
            metric.samples = [sample._replace(labels=self._label | sample.labels) for sample in metric.samples]
            yield metric
