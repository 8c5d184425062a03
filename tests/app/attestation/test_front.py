"""The front is a real HAProxy; behind it is a small service in place of Redoubt."""

import hashlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import UnixStreamServer
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from app.attestation.front import start_front
from app.attestation.tls_key import TlsKey, make_tls_key
from app.settings.knobs import SettingsError
from tests.listening import listens
from tests.service.running import free_port, wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy", path="/usr/sbin") is None, reason="Debian's HAProxy is not there"
)


SHORT_S = 2
"""An idle timeout that a test waits for."""
ENOUGH_S = 10
"""One within which a busy machine sends a request, and for which a test waits too."""


class Service(BaseHTTPRequestHandler):
    """Answers with who it is and the path."""

    name = "service"

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(ENOUGH_S + 2)
        body = f"{self.name} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Front:
    port: int
    key: TlsKey
    process: "subprocess.Popen[bytes]"
    folder: Path


of_silence = pytest.mark.parametrize("front", [ENOUGH_S], indirect=True)


@pytest.fixture(params=[60])
def front(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Front]:
    """Its param: the idle timeout."""
    attestation_socket = Path(f"/tmp/redoubt-test-{free_port()}")

    class Attestation(Service):
        name = "attestation"

    attestation = UnixStreamServer(str(attestation_socket), Attestation)
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    for server in (attestation, service):
        Thread(target=server.serve_forever, daemon=True).start()
    key, port = make_tls_key(["localhost"]), free_port()
    process = start_front(
        tmp_path,
        key,
        host="127.0.0.1",
        tls_port=port,
        attestation_socket=attestation_socket,
        service_port=service.server_address[1],
        idle_timeout_s=request.param,
    )
    try:
        wait_until(lambda: listens("127.0.0.1", port), "the front listens")
        yield Front(port, key, process, tmp_path)
    finally:
        process.kill()
        process.wait()
        for server in (attestation, service):
            server.shutdown()
            server.server_close()
        attestation_socket.unlink()


def context() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def get(front: Front, path: str) -> str:
    with closing(http.client.HTTPSConnection("127.0.0.1", front.port, timeout=60, context=context())) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def test_attestation_requests_go_to_their_service_and_all_others_to_ours(front: Front) -> None:
    assert get(front, "/v1/attestation?nonce=0") == "attestation /v1/attestation?nonce=0"
    for path in ("/v1/models", "/v1/attestation/", "/v1//attestation", "/"):
        assert get(front, path) == f"service {path}"


def test_a_connection_shows_the_key_of_the_statement(front: Front) -> None:
    with socket.create_connection(("127.0.0.1", front.port)) as plain, context().wrap_socket(plain) as secured:
        certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        assert secured.version() == "TLSv1.3"
    public = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert hashlib.sha256(public).hexdigest() == front.key.spki_sha256


def test_no_session_is_resumed(front: Front) -> None:
    shared = context()
    session = None
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", front.port)) as plain,
            shared.wrap_socket(plain, session=session) as secured,
        ):
            secured.sendall(b"GET / HTTP/1.1\r\nHost: front\r\nConnection: close\r\n\r\n")
            while secured.recv(4096):
                pass
            assert not secured.session_reused
            session = secured.session


@pytest.mark.parametrize("front", [SHORT_S], indirect=True)
def test_who_says_nothing_does_not_keep_a_place(front: Front) -> None:
    """The places are few: a client holds one for as long as its handshake may last."""
    with socket.create_connection(("127.0.0.1", front.port), timeout=60 * SHORT_S) as silent:
        assert silent.recv(1) == b""


@of_silence
def test_the_service_may_take_longer_than_clients(front: Front) -> None:
    assert get(front, "/slow") == "service /slow"


@of_silence
def test_what_haproxy_answers_itself_has_the_shape_of_the_api(front: Front) -> None:
    """Of a request whose body stops coming."""
    with closing(http.client.HTTPSConnection("127.0.0.1", front.port, timeout=60, context=context())) as connection:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Length", "9")
        connection.endheaders(b"half")
        response = connection.getresponse()
        body = json.loads(response.read())
    assert (response.status, response.headers["content-type"]) == (408, "application/json")
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == "request_timeout"


def test_older_tls_is_refused(front: Front) -> None:
    old = context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", front.port)) as plain,
        pytest.raises(ssl.SSLError),
        old.wrap_socket(plain),
    ):
        pass


def test_the_key_is_in_no_file(front: Front) -> None:
    """Nor in one that HAProxy holds open, which a bug that reads files of any name would give away."""
    secret = front.key.pem.split(b"-----BEGIN PRIVATE KEY-----")[1].split()[0]
    opened = Path(f"/proc/{front.process.pid}/fd").iterdir()
    memory = [path for path in opened if str(path.readlink()).startswith("/memfd:")]
    for path in (*front.folder.rglob("*"), *memory):
        assert secret not in path.read_bytes()


def test_it_does_not_stay_when_its_start_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: "subprocess.Popen[bytes]", *_: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr("app.attestation.front._await_listening", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start_front(
            tmp_path,
            make_tls_key(["localhost"]),
            host="127.0.0.1",
            tls_port=free_port(),
            attestation_socket=tmp_path / "s",
            service_port=1,
        )
    assert started[0].returncode is not None


def test_what_haproxy_refuses_is_told(front: Front, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the front does not start"):
        start_front(
            tmp_path,
            TlsKey(b"nonsense", ""),
            host="127.0.0.1",
            tls_port=free_port(),
            attestation_socket=tmp_path / "s",
            service_port=1,
        )
