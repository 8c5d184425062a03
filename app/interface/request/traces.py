"""Traces for an OpenTelemetry collector: a span per request, one until its first token and one for its output.

A span has the same data as the access log's line (`app.interface.http.watched_requests`): ids, counts and times, no
text. A client's `traceparent` (W3C Trace Context) makes it part of the client's trace; only its digits are used. A
thread sends the spans, and those that the collector does not take are dropped.

The library is imported only if an endpoint is set.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.settings.knobs import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_SPANS_PATH = "/v1/traces"
_CONTEXT_HEADER = "traceparent"
_ATTRIBUTES = {
    "method": "http.request.method",
    "route": "http.route",
    "status": "http.response.status_code",
    "error": "error.type",
    "model": "gen_ai.request.model",
    "finish_reason": "gen_ai.response.finish_reason",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "redoubt.cached_tokens",
    "request_id": "redoubt.request_id",
    "answer_id": "redoubt.answer_id",
    "caller": "redoubt.caller",
    "resumed": "redoubt.resumed",
    "stream": "redoubt.stream",
}
"""Maps a log line's fields to attributes; OpenTelemetry's semantic conventions where they exist."""
_NEEDED = "ingress.traces_endpoint needs OpenTelemetry's exporter: pip install 'redoubt[traces]'"


class Traces:
    """Sends the spans of one ingress."""

    def __init__(self, endpoint: str, *, version: str, ingress: str, exporter: "SpanExporter | None" = None) -> None:
        """endpoint: an OTLP/HTTP collector without a path. Raises SettingsError without the library.

        exporter: replaces the one for the endpoint.
        """
        check_library()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        names = {"service.name": "redoubt", "service.version": version, "service.instance.id": ingress}
        self._provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
        sender = exporter or OTLPSpanExporter(endpoint.rstrip("/") + _SPANS_PATH)
        self._provider.add_span_processor(BatchSpanProcessor(sender))
        self._tracer = self._provider.get_tracer("redoubt")

    def add(self, line: Mapping[str, Any], came_ns: int, headers: Mapping[str, str]) -> None:
        """Adds an ended request. came_ns: its start in Unix nanoseconds. Does not block."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {_CONTEXT_HEADER: headers[_CONTEXT_HEADER]} if _CONTEXT_HEADER in headers else {}
        span = self._tracer.start_span(
            f"{line['method']} {line['route']}",
            TraceContextTextMapPropagator().extract(carrier),
            SpanKind.SERVER,
            {name: line[key] for key, name in _ATTRIBUTES.items() if line[key] is not None},
            start_time=came_ns,
        )
        ended_ns = came_ns + int(line["duration_s"] * 1e9)
        if line["first_token_s"] is not None:
            first_ns = came_ns + int(line["first_token_s"] * 1e9)
            inside = set_span_in_context(span)
            self._tracer.start_span("first token", inside, start_time=came_ns).end(first_ns)
            self._tracer.start_span("output", inside, start_time=first_ns).end(max(first_ns, ended_ns))
        if line["status"] >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def close(self) -> None:
        """Sends the queued spans. May block as long as the collector does, so call it in a thread."""
        self._provider.shutdown()


def check_library() -> None:
    """Raises SettingsError if the library is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        raise SettingsError(_NEEDED) from error
