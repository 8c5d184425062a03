"""Metrics for the operator in Prometheus' text format: counts, times and shares.

No series is about a user, a key, a prompt or an answer. Labels are methods, routes, statuses, models, finish reasons
and workers only, and none takes its value from a request's text. HTTP is counted per ingress replica; workers report
their counts in their heartbeats. It knows neither Ray nor the engine.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.interface.service import ServedModel
from app.messages.outputs import Generate, TokenDelta
from app.messages.requests import BeamParams, GenerateRequest
from app.messages.workers import WorkerRow

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_NEXT_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """One ingress replica's series. Any thread may use it, because the library locks its series."""

    def __init__(self, workers: Callable[[], Sequence[WorkerRow]]) -> None:
        self._registry = registry = CollectorRegistry()  # not the library's global one, which has Ray's series
        self._requests = Counter(
            "redoubt_http_requests", "HTTP requests answered.", ["method", "route", "status"], registry=registry
        )
        self._sequences = Counter(
            "redoubt_sequences",
            "Sequences that have ended: stop, length, error; closed by a stop string or as the client went.",
            ["model", "reason"],
            registry=registry,
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
        registry.register(_Workers(workers))

    def text(self) -> bytes:
        """All series now, as `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def answered(self, method: str, route: str, status: int) -> None:
        """A request was answered; `route` is a path with its variables' names, never their values."""
        self._requests.labels(method, route, status).inc()

    def observed(self, model: str, generate: Generate) -> Generate:
        """The same generator, with its sequences and tokens counted."""
        sequences = {reason: self._sequences.labels(model, reason) for reason in ("stop", "length", "error", "closed")}
        prompt_tokens, cached_tokens = self._prompt_tokens.labels(model), self._cached_tokens.labels(model)
        generated_tokens = self._generated_tokens.labels(model)
        first_token_s, next_token_s = self._first_token_s.labels(model), self._next_token_s.labels(model)

        async def counted(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
            last_s = perf_counter()
            began = has_tokens = False
            reason = "closed"
            try:
                async with aclosing(generate(request)) as deltas:
                    async for delta in deltas:
                        if not began and delta.has_output:
                            began = True
                            prompt_tokens.inc(len(request.prompt_token_ids))
                        if delta.cached_tokens:
                            cached_tokens.inc(delta.cached_tokens)
                        if isinstance(request.search, BeamParams):
                            # A beam search's answers come all at once, so there is no first token to time.
                            made = len(delta.token_ids) + sum(len(answer.token_ids) for answer in delta.more)
                            generated_tokens.inc(made)
                        elif delta.token_ids:
                            now_s = perf_counter()
                            if has_tokens:
                                next_token_s.observe((now_s - last_s) / len(delta.token_ids))
                            else:
                                first_token_s.observe(now_s - last_s)
                            last_s, has_tokens = now_s, True
                            generated_tokens.inc(len(delta.token_ids))
                        reason = delta.finish_reason or reason
                        yield delta
            except Exception:
                reason = "error"
                raise
            finally:
                sequences[reason].inc()

        return counted


class _Workers(Collector):
    """The worker table as series: what each worker reported in its last heartbeat."""

    def __init__(self, workers: Callable[[], Sequence[WorkerRow]]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """One sample for each worker that is not gone."""
        rows = [row for row in self._workers() if row.state != "gone"]
        gauges: dict[str, tuple[str, Callable[[WorkerRow], float]]] = {
            "up": ("Whether it reports, and gets requests.", lambda row: row.check_heart_beat),
            "requests_running": ("Sequences that it computes.", lambda row: row.running),
            "requests_waiting": ("Sequences that wait for a place.", lambda row: row.waiting),
            "kv_pages": ("Pages of keys and values.", lambda row: row.kv_pages),
            "kv_pages_used": ("Pages that sequences hold.", lambda row: row.kv_pages - row.kv_pages_free),
            "kv_pages_cached": ("Pages that later prompts may find.", lambda row: row.kv_pages_cached),
        }
        counters: dict[str, tuple[str, Callable[[WorkerRow], float]]] = {
            "computed_tokens": ("Tokens that went through the model.", lambda row: row.computed_tokens),
            "cached_tokens": ("Prompt tokens that the prefix cache had.", lambda row: row.cached_tokens),
            "generated_tokens": ("Tokens made.", lambda row: row.generated_tokens),
            "preemptions": ("Sequences that gave their pages back.", lambda row: row.preemptions),
        }
        for name, (description, value) in gauges.items():
            gauge = GaugeMetricFamily(f"redoubt_worker_{name}", description, labels=["worker"])
            for row in rows:
                gauge.add_metric([row.worker_id], value(row))
            yield gauge
        for name, (description, value) in counters.items():
            counter = CounterMetricFamily(f"redoubt_worker_{name}", description, labels=["worker"])
            for row in rows:
                counter.add_metric([row.worker_id], value(row))
            yield counter


class ObservedModels(Mapping[str, ServedModel]):
    """The models that are served now; what each generates is counted."""

    def __init__(self, models: Mapping[str, ServedModel], metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics

    def __getitem__(self, name: str) -> ServedModel:
        model = self._models[name]
        return replace(model, generate=self._metrics.observed(name, model.generate))

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)
