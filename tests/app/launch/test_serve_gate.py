"""The Serve gate over its real server. Ray's dashboard is a small server that records what reaches it."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from app.launch import small_server
from app.launch.serve_gate import PATH, ServeGate
from app.launch.small_server import SmallServer
from tests.app.launch.test_measured_config import CONFIGURATION, measured
from tests.service.running import free_port

OPERATOR, INNER = "the operator's token", "Ray's own token"


Seen = tuple[str, str, str | None, bytes]
"""Method, target, Authorization and body of a request."""
Answer = tuple[int, str]


class Dashboard:
    """Answers everything with `{}`."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        query = f"?{request.url.query}" if request.url.query else ""
        target = scope["raw_path"].decode() + query
        self.seen.append((request.method, target, request.headers.get("authorization"), await request.body()))
        await JSONResponse({})(scope, receive, send)


@dataclass(frozen=True)
class Gate:
    port: int
    seen: list[Seen]

    def ask(self, method: str, target: str, body: Any = None, token: str | None = OPERATOR, **headers: str) -> Answer:
        """headers: with _ for -."""
        given = {} if token is None else {"x-ray-authorization": f"Bearer {token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, target, content, given)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def send(self, request: str, body: bytes = b"") -> int:
        """The status for exactly these bytes; the token is put behind the first line."""
        line, _, rest = request.partition("\n")
        head = f"{line}\r\nHost: head\r\nAuthorization: Bearer {OPERATOR}\r\nConnection: close\r\n"
        head += rest.replace("\n", "\r\n") + "\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(head.encode() + body)
            return int(connection.makefile("rb").readline().split()[1])


def gate_for(dashboard_port: int) -> SmallServer:
    application = ServeGate(measured(), operator_token=OPERATOR, dashboard_port=dashboard_port, ray_token=INNER)
    return SmallServer(application, "127.0.0.1", 0)


@pytest.fixture(scope="module")
def running() -> Iterator[Gate]:
    dashboard = Dashboard()
    with (
        closing(SmallServer(dashboard, "127.0.0.1", 0)) as behind,
        closing(gate_for(behind.port)) as server,
    ):
        yield Gate(server.port, dashboard.seen)


@pytest.fixture
def gate(running: Gate) -> Gate:
    running.seen.clear()
    return running


def changed(**changes: Any) -> dict[str, Any]:
    """The measured configuration with changes of its application, args.worker among them."""
    made = deepcopy(CONFIGURATION)
    application = made["applications"][0]
    application["args"]["worker"] |= changes.pop("worker", {})
    application |= changes
    return made


@pytest.mark.parametrize("target", [PATH, f"{PATH}?api_type=declarative"])
def test_the_operator_sees_the_applications(target: str, gate: Gate) -> None:
    assert gate.ask("GET", target) == (200, "{}")
    assert gate.ask("GET", target, token=None, authorization=f"Bearer {OPERATOR}") == (200, "{}")
    assert gate.seen == [("GET", target, f"Bearer {INNER}", b"")] * 2


def test_the_measured_configuration_is_taken_in_any_spelling_and_sent_in_ours(gate: Gate) -> None:
    # Go writes 1.0 as 1.
    spelled = changed(worker={"ray_num_cpus": 1, "max_concurrent_requests": 8.0})
    for body in (CONFIGURATION, json.dumps(spelled, indent=4, sort_keys=True).encode()):
        assert gate.ask("PUT", PATH, body) == (200, "{}")
    assert {body for *_, body in gate.seen} == {json.dumps(CONFIGURATION, sort_keys=True).encode()}
    assert {token for _, _, token, _ in gate.seen} == {f"Bearer {INNER}"}


def test_a_share_of_the_capacity_is_passed_on(gate: Gate) -> None:
    assert gate.ask("PUT", PATH, CONFIGURATION | {"target_capacity": 50})[0] == 200
    assert json.loads(gate.seen[0][3]) == CONFIGURATION | {"target_capacity": 50}


@pytest.mark.parametrize("share", [-1, 101, True, "50", [], {"a": 1}], ids=str)
def test_another_share_is_refused(share: object, gate: Gate) -> None:
    status, body = gate.ask("PUT", PATH, CONFIGURATION | {"target_capacity": share})
    assert (status, "target_capacity" in body) == (403, True)
    assert gate.seen == []


OTHERS = {
    "another knob": changed(worker={"max_concurrent_requests": 9}),
    "a truth value for a number": changed(worker={"ray_num_cpus": True}),
    "a text for a number": changed(worker={"ray_num_cpus": "1.0"}),
    "a knob more": changed(worker={"count": 1}),
    "runtime_env": changed(runtime_env={"working_dir": "https://elsewhere.example/code.zip"}),
    "an empty runtime_env": changed(runtime_env={}),
    "other code": changed(import_path="os:system"),
    "a second application": {**CONFIGURATION, "applications": CONFIGURATION["applications"] * 2},
    "no application": {**CONFIGURATION, "applications": []},
    "a top-level key": {**CONFIGURATION, "grpc_options": {"grpc_servicer_functions": ["os.system"]}},
    "another address": {**CONFIGURATION, "http_options": {"host": "0.0.0.0", "port": 8000}},
    "a list": [CONFIGURATION],
    "nothing": {},
    "null": None,
    "a key twice": json.dumps(CONFIGURATION)[:-1].encode() + b', "applications": []}',
    "NaN": json.dumps(CONFIGURATION).replace("1.0", "NaN").encode(),
    "an endless number": json.dumps(CONFIGURATION).replace("1.0", "9" * 5000).encode(),
    "depth": b"[" * 100_000,
    "YAML": yaml.safe_dump(CONFIGURATION).encode(),
    "not UTF-8": b'{"applications": "\xff"}',
    "no body": b"",
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_configuration_is_taken(name: str, gate: Gate) -> None:
    body = OTHERS[name]
    status, text = gate.ask("PUT", PATH, b"null" if body is None else body)
    error = json.loads(text)["error"]
    assert (status, error["code"]) == (403, "refused")
    assert "takes only the configuration that is measured" in error["message"]
    assert gate.seen == []


def test_where_it_differs_is_said_without_the_callers_words(gate: Gate) -> None:
    _, text = gate.ask("PUT", PATH, changed(worker={"max_concurrent_requests": "a secret"}))
    assert "applications[0].args.worker.max_concurrent_requests differs" in text
    assert "secret" not in text


BODY = json.dumps(CONFIGURATION).encode()
LENGTH = f"Content-Length: {len(BODY)}\n"
REQUESTS = {
    "jobs": "POST /api/jobs/ HTTP/1.1\nContent-Length: 0\n",
    "list of jobs": "GET /api/jobs/ HTTP/1.1\n",
    "another route": "GET /api/cluster_status HTTP/1.1\n",
    "the page": "GET / HTTP/1.1\n",
    "scaling": "POST /api/v1/applications/redoubt/deployments/Worker/scale HTTP/1.1\nContent-Length: 0\n",
    "delete": f"DELETE {PATH} HTTP/1.1\n",
    "post": f"POST {PATH} HTTP/1.1\n{LENGTH}",
    "head": f"HEAD {PATH} HTTP/1.1\n",
    "options": f"OPTIONS {PATH} HTTP/1.1\n",
    "lower case": f"get {PATH} HTTP/1.1\n",
    "no last slash": f"GET {PATH.rstrip('/')} HTTP/1.1\n",
    "two slashes": f"GET /{PATH} HTTP/1.1\n",
    "a dot": "GET /api/serve/./applications/ HTTP/1.1\n",
    "dots": f"GET /api/jobs/..{PATH.removeprefix('/api')} HTTP/1.1\n",
    "encoded dots": f"PUT {PATH}%2e%2e/ HTTP/1.1\n{LENGTH}",
    "an encoded letter": "GET /api/serve/%61pplications/ HTTP/1.1\n",
    "an encoded slash": "GET /api/serve%2fapplications/ HTTP/1.1\n",
    "a parameter": f"GET {PATH};a=b HTTP/1.1\n",
    "a fragment": f"GET {PATH}#a HTTP/1.1\n",
    "upper case": f"GET {PATH.upper()} HTTP/1.1\n",
    "an absolute URI": f"GET http://head{PATH} HTTP/1.1\n",
    "a query": f"GET {PATH}?api_type=imperative HTTP/1.1\n",
    "a query twice": f"GET {PATH}?api_type=declarative&api_type=declarative HTTP/1.1\n",
    "a query of a PUT": f"PUT {PATH}?api_type=declarative HTTP/1.1\n{LENGTH}",
    "a GET with a body": f"GET {PATH} HTTP/1.1\n{LENGTH}",
    "a WebSocket": f"GET {PATH} HTTP/1.1\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAA\n",
    "HTTP/2": f"GET {PATH} HTTP/1.1\nUpgrade: h2c\nHTTP2-Settings: AAAA\n",
    "CONNECT": "CONNECT 127.0.0.1:6379 HTTP/1.1\n",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_no_other_request_reaches_the_dashboard(name: str, gate: Gate) -> None:
    request = REQUESTS[name]
    assert gate.send(request, BODY if LENGTH in request else b"") == 403
    assert gate.seen == []


def test_chunks_and_two_lengths_are_refused(gate: Gate) -> None:
    chunked = f"PUT {PATH} HTTP/1.1\nTransfer-Encoding: chunked\n"
    assert gate.send(chunked, b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)) == 403
    assert gate.send(f"{chunked}{LENGTH}", b"0\r\n\r\n") in (400, 403)
    assert gate.send(f"PUT {PATH} HTTP/1.1\n{LENGTH}Content-Length: 3\n", BODY) == 400
    assert gate.seen == []


@pytest.mark.parametrize("token", [None, "", "wrong", INNER, OPERATOR.upper()])
def test_without_the_operators_token_nothing_is_answered(token: str | None, gate: Gate) -> None:
    for method, target, body in (("GET", PATH, None), ("PUT", PATH, CONFIGURATION), ("GET", "/api/jobs/", None)):
        status, text = gate.ask(method, target, body, token=token)
        assert (status, json.loads(text)["error"]["code"]) == (401, "unauthorized")
    assert gate.seen == []


def test_bodies_are_bounded_in_size_and_time(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.ask("PUT", PATH, b" " * (2 << 20))[0] == 413
    monkeypatch.setattr(small_server, "_BODY_TIMEOUT_S", 0.2)
    assert gate.send(f"PUT {PATH} HTTP/1.1\n{LENGTH}", BODY[:10]) == 408
    assert gate.seen == []
    assert gate.ask("GET", PATH)[0] == 200


def test_a_dashboard_that_is_away_is_told() -> None:
    with closing(gate_for(free_port())) as server:
        status, text = Gate(server.port, []).ask("GET", PATH)
    assert (status, json.loads(text)["error"]["code"]) == (503, "dashboard")
