"""Traces as a collector receives them."""

import gzip
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.interface.request.traces import Traces
from app.settings.applications import parse_settings
from app.settings.knobs import SettingsError
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client

CLIENTS_TRACE = "0af7651916cd43dd8448eb211c80319c"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "canary"}], "user": "canary", "max_tokens": 4}


class Collector:
    """A receiver of OTLP over HTTP."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "redoubt"
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    Thread(target=collector.server.serve_forever).start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


async def test_a_request_is_a_trace_without_a_text(collector: Collector) -> None:
    traces = Traces(collector.url, version="1", ingress="i")
    app = http_app(FakeWorker(lambda _: deltas([5, 6])).generate, traces=traces)
    headers = {
        "traceparent": f"00-{CLIENTS_TRACE}-b7ad6b7169203331-01",
        "tracestate": "a=canary",
        "baggage": "b=canary",
    }
    async with http_client(app) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
        assert (
            await client.get("/v1/canary", headers={"traceparent": "00-canary-b7ad6b7169203331-01"})
        ).status_code == 404
    traces.close()
    assert set(collector.paths) == {"/v1/traces"}
    assert b"canary" not in b"".join(collector.bodies)
    by_name = {span.name: span for span in collector.spans()}
    assert set(by_name) == {"POST /v1/chat/completions", "first token", "output", "GET /v1/{path:path}"}
    whole, first, output = by_name["POST /v1/chat/completions"], by_name["first token"], by_name["output"]
    assert whole.trace_id.hex() == first.trace_id.hex() == CLIENTS_TRACE
    assert whole.parent_span_id.hex() == "b7ad6b7169203331"
    assert first.parent_span_id == output.parent_span_id == whole.span_id
    assert whole.start_time_unix_nano == first.start_time_unix_nano < first.end_time_unix_nano
    assert first.end_time_unix_nano == output.start_time_unix_nano <= output.end_time_unix_nano
    found = attributes(whole)
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.request.model"] == "tiny"
    assert (found["gen_ai.usage.output_tokens"], found["redoubt.resumed"]) == (2, 0)
    unknown = by_name["GET /v1/{path:path}"]
    assert unknown.trace_id.hex() != CLIENTS_TRACE
    assert attributes(unknown)["http.response.status_code"] == 404


async def test_a_collector_that_is_not_there_holds_up_nothing() -> None:
    traces = Traces("http://127.0.0.1:9", version="1", ingress="i")
    app = http_app(FakeWorker(lambda _: deltas([5])).generate, traces=traces)
    async with http_client(app) as client:
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


def test_without_the_library_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"traces_endpoint needs .* pip install 'redoubt\[traces\]'"):
        Traces("http://127.0.0.1:9", version="1", ingress="i")


@pytest.mark.parametrize("wrong", ["127.0.0.1:4318", "http://host/v1/traces", "grpc://host"])
def test_an_endpoint_is_an_address_without_a_path(wrong: str) -> None:
    with pytest.raises(SettingsError, match="traces_endpoint"):
        parse_settings({"model": {"folder": "m"}, "ingress": {"traces_endpoint": wrong}})
