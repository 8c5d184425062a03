import contextlib
import json
import socket
import threading
import time
from asyncio import Event, sleep
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.service import http_app, loopback_server
from tests.app.tiny_model import reference_tokenizer

TOKENS = reference_tokenizer().encode("Hello").ids
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
WAIT_S = 120


class SteppedWorker:
    """Generates a token whenever the test says so, and tells when its stream was closed."""

    def __init__(self, tokens_before_waiting: int) -> None:
        self._free = tokens_before_waiting
        self.reached = threading.Semaphore(0)
        self.left = threading.Semaphore(0)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        try:
            for _ in range(self._free):
                yield TokenDelta((TOKENS[0],))
            self.reached.release()
            await Event().wait()
        finally:
            self.left.release()


class EndlessWorker:
    """Never ends by itself."""

    def __init__(self) -> None:
        self.made = 0
        self.left = threading.Semaphore(0)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        try:
            while True:
                yield TokenDelta((TOKENS[0],) * 1000)
                self.made += 1000
                await sleep(0)
        finally:
            self.left.release()


def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


@contextlib.contextmanager
def posted(address: str, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """Opens a connection and sends a request, without reading."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connected(address) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        yield connection


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("tokens_before", [0, 3], ids=["before the first token", "while decoding"])
@pytest.mark.parametrize("choices", [1, 3])
def test_a_client_that_goes_away_ends_its_generators(streamed: bool, tokens_before: int, choices: int) -> None:
    worker = SteppedWorker(tokens_before)
    with loopback_server(http_app(worker.generate)) as address:
        with posted(address, "/v1/chat/completions", CHAT | {"stream": streamed, "n": choices}) as connection:
            for _ in range(choices):
                assert worker.reached.acquire(timeout=WAIT_S)
            if streamed and tokens_before:
                assert b"assistant" in connection.recv(65536)
        for _ in range(choices):
            assert worker.left.acquire(timeout=WAIT_S)


def test_closing_the_openai_stream_ends_the_generator() -> None:
    worker = SteppedWorker(2)
    with loopback_server(http_app(worker.generate)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        with client, client.chat.completions.create(**CHAT, stream=True) as stream:
            next(iter(stream))
            assert not worker.left.acquire(blocking=False)
        assert worker.left.acquire(timeout=WAIT_S)


def test_text_is_sent_before_the_answer_is_complete() -> None:
    worker = SteppedWorker(3)
    with loopback_server(http_app(worker.generate)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        with client, client.chat.completions.create(**CHAT, stream=True) as stream:
            text = ""
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if text == "HHH":
                    break
            assert text == "HHH"


def test_a_reader_that_never_reads_disturbs_no_other_client() -> None:
    worker, other = EndlessWorker(), SteppedWorker(3)

    def choose(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        return (worker if request.sampling.seed == 0 else other).generate(request)

    with loopback_server(http_app(choose)) as address:
        with posted(address, "/v1/chat/completions", CHAT | {"stream": True, "seed": 0}) as connection:
            # The other stream's text arrives while this one is stuck in a full socket.
            with posted(address, "/v1/chat/completions", CHAT | {"stream": True, "seed": 1}) as reader:
                received = b""
                while received.count(b'"content":"H') < 1:
                    received += reader.recv(65536)
            assert connection.fileno() >= 0
        assert worker.left.acquire(timeout=WAIT_S)
        assert other.left.acquire(timeout=WAIT_S)


def test_many_streams_at_once() -> None:
    token_ids = reference_tokenizer().encode("The capital of France is Paris.").ids

    async def generate(_: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        for token in token_ids:
            await sleep(0)
            yield TokenDelta((token,))
        yield TokenDelta((), "stop")

    with loopback_server(http_app(generate)) as address:
        texts = in_threads(32, lambda: read_text(address))
    assert texts == ["The capital of France is Paris."] * 32


def read_text(address: str) -> str:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**CHAT, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def in_threads(count: int, work: Callable[[], str]) -> list[str]:
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=WAIT_S)
    return results


LARGE = 30_000_000


def announce(connection: socket.socket, *headers: str) -> None:
    first = "POST /v1/chat/completions HTTP/1.1"
    head = (first, "Host: localhost", "Connection: close", f"Content-Length: {LARGE}", *headers)
    connection.sendall("\r\n".join([*head, "", ""]).encode())


def read_answer(connection: socket.socket) -> tuple[bytes, dict[str, Any]]:
    """Reads the first line and the body, whose length is declared."""
    stream = connection.makefile("rb")
    first, length = stream.readline().strip(), 0
    while line := stream.readline().strip().lower():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return first, json.loads(stream.read(length))


@pytest.mark.parametrize(("keys", "status"), [((), b"413"), (("secret",), b"401")])
def test_an_answer_to_an_unread_body_arrives(keys: tuple[str, ...], status: bytes) -> None:
    """The client reads only after sending everything, so a reset would break its sending."""
    worker = SteppedWorker(0)
    with loopback_server(http_app(worker.generate, api_keys=keys)) as address, connected(address) as connection:
        announce(connection, "Content-Type: application/json")
        for _ in range(30):
            connection.sendall(b" " * (LARGE // 30))
        first, error = read_answer(connection)
        assert first.split()[1] == status
        assert error["error"]["message"]


@pytest.mark.parametrize("limits", [(0.5, 1000.0), (1000.0, 0.5)], ids=["in all", "of silence"])
def test_an_answer_does_not_wait_for_the_body(monkeypatch: pytest.MonkeyPatch, limits: tuple[float, float]) -> None:
    for name, seconds in zip(("_LONGEST_LINGER_S", "_LONGEST_SILENCE_S"), limits, strict=True):
        monkeypatch.setattr(f"app.interface.http.guard.{name}", seconds)
    worker = SteppedWorker(0)
    with loopback_server(http_app(worker.generate)) as address, connected(address) as connection:
        announce(connection, "Content-Type: application/json", "Expect: 100-continue")
        first, error = read_answer(connection)  # although no byte of the body arrives
        assert first.split()[1] == b"413"
        assert error["error"]["code"] == "request_too_large"
        assert connection.recv(1) == b"", "a body that never comes is not waited for long"


def half_sent(address: str, stack: contextlib.ExitStack) -> socket.socket:
    """Opens a connection and sends half a request."""
    connection = stack.enter_context(connected(address))
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b'{"model":')
    return connection


def requests_of(address: str) -> dict[str, int]:
    """Returns how many chat completions were answered, by status."""
    lines = httpx.get(f"{address}/metrics", timeout=WAIT_S).text.splitlines()
    counts = [line for line in lines if line.startswith("redoubt_http_requests_total{") and "chat" in line]
    return {line.partition('status="')[2][:3]: int(float(line.rpartition(" ")[2])) for line in counts}


@pytest.mark.parametrize("route", ["chat/completions", "completions", "responses", "embeddings"])
def test_an_aborted_upload_is_no_failure_of_ours(route: str, caplog: pytest.LogCaptureFixture) -> None:
    with loopback_server(http_app(SteppedWorker(0).generate)) as address:
        with connected(address) as connection:
            head = f"POST /v1/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b'{"model":')
            time.sleep(0.2)
        counted = f'redoubt_http_requests_total{{ingress="i1",method="POST",route="/v1/{route}",status="499"}} 1.0'
        deadline = time.monotonic() + WAIT_S
        while counted not in (text := httpx.get(f"{address}/metrics", timeout=WAIT_S).text):
            assert time.monotonic() < deadline, text
            assert 'status="500"' not in text, caplog.text
    assert "failed" not in caplog.text
    assert "Traceback" not in caplog.text


def test_a_body_that_stops_coming_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.http.places._LONGEST_SILENCE_S", 0.5, raising=False)
    with loopback_server(http_app(SteppedWorker(0).generate)) as address, contextlib.ExitStack() as stack:
        connection = half_sent(address, stack)
        connection.settimeout(WAIT_S)
        first, error = read_answer(connection)
        assert first.split()[1] == b"408"
        assert error["error"]["code"] == "request_timeout"
        assert requests_of(address) == {"408": 1}


@pytest.mark.parametrize("pause_s", [0.01, 0.2], ids=["quick", "too slow"])
def test_a_slow_body_must_move(monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    """A body may take any time, if it is as fast as the slowest allowed rate."""
    monkeypatch.setattr("app.interface.http.places._QUICK_BODY_S", 0.1, raising=False)
    monkeypatch.setattr("app.interface.http.places._LONGEST_SILENCE_S", 60.0, raising=False)
    grace_s = 60.0 if pause_s < 0.1 else 1.0  # a busy machine makes a quick body late, and a slow one slower
    monkeypatch.setattr("app.interface.http.places._GRACE_S", grace_s, raising=False)
    monkeypatch.setattr("app.interface.http.places._SLOWEST_BYTES_PER_S", 100.0, raising=False)
    content = json.dumps(CHAT | {"user": "x" * 200, "nonsense": 1}).encode()
    with loopback_server(http_app(SteppedWorker(0).generate)) as address, connected(address) as connection:
        connection.settimeout(WAIT_S)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(content), 10):
                connection.sendall(content[start : start + 10])
                time.sleep(pause_s)
        first, _ = read_answer(connection)
        assert first.split()[1] == (b"400" if pause_s < 0.1 else b"408")


def test_half_sent_requests_leave_places_to_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.http.places._QUICK_BODY_S", 2.0, raising=False)
    for name in ("_LONGEST_SILENCE_S", "_GRACE_S"):
        monkeypatch.setattr(f"app.interface.http.places.{name}", 600.0, raising=False)
    app = http_app(SteppedWorker(0).generate, max_ongoing_requests=8)  # two of them for slow bodies
    with loopback_server(app) as address, contextlib.ExitStack() as stack:
        connections = [half_sent(address, stack) for _ in range(6)]
        deadline = time.monotonic() + WAIT_S
        while requests_of(address).get("503", 0) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)
        assert requests_of(address) == {"503": 4}, "no more than these"
        refused = httpx.post(f"{address}/v1/chat/completions", json=CHAT | {"nonsense": 1}, timeout=WAIT_S)
        assert refused.status_code == 400, "a whole request is looked at"
        for connection in connections:
            connection.close()


def test_probes_and_metrics_answer_when_all_places_are_taken() -> None:
    worker = SteppedWorker(0)
    with loopback_server(http_app(worker.generate, max_ongoing_requests=2)) as address:
        with (
            posted(address, "/v1/chat/completions", CHAT | {"stream": True}),
            posted(address, "/v1/chat/completions", CHAT | {"stream": True}),
        ):
            for _ in range(2):
                assert worker.reached.acquire(timeout=WAIT_S)
            for path in ("/v1/models", "/v1/workers", "/nowhere"):
                refused = httpx.get(address + path, timeout=WAIT_S)
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "3"
                assert refused.json()["error"]["code"] == "service_unavailable"
            for path in ("/health", "/livez", "/readyz"):
                assert httpx.get(address + path, timeout=WAIT_S).status_code == 200
            for _ in range(5):  # one after another
                full = httpx.get(f"{address}/metrics", timeout=WAIT_S)
                assert 'redoubt_open_requests{ingress="i1"} 2.0' in full.text
        for _ in range(2):
            assert worker.left.acquire(timeout=WAIT_S)
        text = httpx.get(f"{address}/metrics", timeout=WAIT_S).text
    assert 'redoubt_http_requests_total{ingress="i1",method="GET",route="any",status="503"} 3.0' in text
