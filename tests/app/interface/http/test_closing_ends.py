"""HTTP/1.0 clients on real sockets, directly and behind HAProxy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.interface.http.closing_ends import end_by_closing
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.test_ingress_sockets import CHAT, TOKENS, connected
from tests.app.launch.test_reverse_proxy import started
from tests.app.service import http_app, loopback_server


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(RequestResponseCycle, "send", RequestResponseCycle.send)  # what follows is taken back
    end_by_closing()
    app = http_app(FakeWorker(lambda _: deltas(TOKENS)).generate)
    app.add_api_route("/-/healthz", lambda: "up")  # Serve's, which HAProxy asks
    with loopback_server(app) as address:
        yield address


def answer_to(address: str, version: str, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """Reads head and body until the connection is closed."""
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if version == "1.1":
        head += "Connection: close\r\n"
    with connected(address) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head_bytes, _, rest = received.partition(b"\r\n\r\n")
    return head_bytes.lower(), rest


def check(address: str) -> None:
    head, body = answer_to(address, "1.0", CHAT | {"stream": True})
    assert b"transfer-encoding" not in head
    assert body.startswith(b"data: ")
    assert body.endswith(b"data: [DONE]\n\n")
    chunked, framed = answer_to(address, "1.1", CHAT | {"stream": True})
    assert b"transfer-encoding: chunked" in chunked
    assert framed.endswith(b"0\r\n\r\n")
    head, body = answer_to(address, "1.0", CHAT)
    assert f"content-length: {len(body)}".encode() in head


def test_a_stream_for_http_1_0_has_no_chunks(address: str) -> None:
    check(address)


def test_nor_has_it_behind_haproxy(address: str, tmp_path: Path) -> None:
    with started(tmp_path, "127.0.0.1", int(address.rpartition(":")[2])) as (port, _):
        check(f"http://127.0.0.1:{port}")
