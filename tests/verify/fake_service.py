"""A service with a soft TEE behind TLS, which records all it receives, below TLS and above it; and policies for it.

Every part of its answer can be changed, to attack a client. Runs in threads of this process.
"""

import base64
import contextlib
import datetime
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.attestation.soft import SoftTee

CANARY = "canary-4d1c0ffee-prompt"
KEY = "sk-canary-key"
IMAGE = "registry.example/redoubt@sha256:" + "ab" * 32
CONFIG = "cf" * 32
MODEL = {"name": "smollm2", "sha256": "e1" * 32}
LISTED = {"id": "smollm2", "max_context_tokens": 2048, "capabilities": ["chat"], "sampling": {}, "asleep": False}
"""The model, as `/v1/models` has it."""
WORDS = ("Verified", " before", " spoken")
Json = dict[str, Any]


def report_data(statement: bytes) -> bytes:
    """What a quote signs for a statement."""
    return hashlib.sha512(b"redoubt/attestation/v1\0" + statement).digest()


@dataclass(slots=True)
class TlsKey:
    """A P-256 key with a certificate that it signs itself."""

    path: Path
    spki_sha256: str

    @classmethod
    def make(cls, folder: Path) -> "TlsKey":
        """A new key in a file of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "front")])
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        certificate = builder.not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashlib.sha256(public).hexdigest()
        path = folder / f"{digest[:16]}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        return cls(path, digest)


@dataclass
class FakeService:
    """What a front with a trust domain behind it does, each step in a field that a test may replace."""

    tee: SoftTee
    keys: list[TlsKey]
    """Connections take them in turn: several replicas, or a key that changes."""
    image: str | None = IMAGE
    config: str = CONFIG
    models: list[Json] = field(default_factory=lambda: [dict(MODEL)])
    statement_of: Callable[[Json], bytes] = lambda values: json.dumps(values).encode()
    """The statement's exact bytes."""
    change_statement: Callable[[Json], None] = lambda values: None
    """Changes the statement before it is quoted."""
    quote_of: Callable[[SoftTee, bytes], bytes] = lambda tee, data: tee.quote(data)
    change_answer: Callable[[Json], None] = lambda answer: None
    """Changes the answer after it is quoted."""
    respond: Callable[[bytes], list[bytes]] | None = None
    """The parts of the whole HTTP response for an answer's JSON; None: an ordinary one."""
    chat: Callable[[], list[bytes]] | None = None
    """The parts of the response to a chat request; None: an ordinary one."""
    http_of: Callable[[str], bytes] | None = None
    tls_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    step: threading.Event | None = None
    """What a streamed answer waits for before each part behind the first."""
    raw: bytearray = field(default_factory=bytearray)
    """All bytes from clients, as they are on the wire."""
    plain: list[bytearray] = field(default_factory=list)
    """All bytes from clients behind TLS, a connection each."""
    resumed: list[bool] = field(default_factory=list)
    """Of each connection, whether the client went on with an older TLS session."""
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    """(target, body) of each whole request."""

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._contexts: dict[Path, ssl.SSLContext] = {}
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """The service's address."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        """Of the requests, without queries."""
        return [target.partition("?")[0] for target, _ in self.requests]

    def close(self) -> None:
        """Ends all connections and waits for their threads."""
        if self.step:
            self.step.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def hang_up(self) -> None:
        """Ends all connections; new ones are taken."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def assert_no_prompt(self) -> None:
        """Nothing but requests for evidence has arrived."""
        everything = b"".join(map(bytes, self.plain))
        for secret in (CANARY, KEY):
            assert secret.encode() not in everything
            assert secret.encode() not in self.raw
        for connection in self.plain:
            request = bytes(connection)
            assert request == b"" or request.startswith(b"GET /v1/attestation?nonce=")
            assert request.count(b"HTTP/1.1") <= 1

    def answer(self, nonce: str, spki_sha256: str) -> Json:
        """The evidence for a nonce."""
        values: Json = {
            "v": 1,
            "nonce": nonce,
            "tls_spki_sha256": spki_sha256,
            "hpke": None,
            "image": self.image,
            "config_sha256": self.config,
            "models": self.models,
            "cluster_ca_spki_sha256": None,
        }
        self.change_statement(values)
        statement = self.statement_of(values)
        answer: Json = {
            "statement": base64.b64encode(statement).decode(),
            "quote": base64.b64encode(self.quote_of(self.tee, report_data(statement))).decode(),
            "event_log": base64.b64encode(self.tee.event_log).decode(),
            "collateral": self.tee.collateral(),
            "insecure": True,
        }
        self.change_answer(answer)
        return answer

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            key = self.keys[(len(self._sockets) - 1) % len(self.keys)]
            thread = threading.Thread(target=self._serve, args=(connection, key), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, key: TlsKey) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, h11.RemoteProtocolError), connection:
            tls = _RecordedTls(connection, self._contexts.setdefault(key.path, self._context(key)), self.raw)
            self.resumed.append(bool(tls.object.session_reused))
            plain = bytearray()
            self.plain.append(plain)
            http = h11.Connection(h11.SERVER)
            while True:
                request, body = self._request(http, tls, plain)
                target = request.target.decode()
                self.requests.append((target, body))
                for index, part in enumerate(self._response(target, body, key)):
                    if index and self.step:
                        self.step.wait(60)
                        self.step.clear()
                    tls.send(part)
                http = h11.Connection(h11.SERVER)

    def _context(self, key: TlsKey) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = self.tls_version
        context.load_cert_chain(key.path)
        return context

    def _request(self, http: h11.Connection, tls: "_RecordedTls", plain: bytearray) -> tuple[h11.Request, bytes]:
        request, body = None, bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = tls.receive()
                plain += data
                if not data:
                    raise OSError("closed")
                http.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return request, bytes(body)
            else:
                raise OSError("closed")

    def _response(self, target: str, body: bytes, key: TlsKey) -> list[bytes]:
        path, _, query = target.partition("?")
        if path == "/v1/attestation":
            answer = json.dumps(self.answer(query.removeprefix("nonce="), key.spki_sha256)).encode()
            return self.respond(answer) if self.respond else [http_response(answer)]
        if path == "/v1/models":
            return [http_response(json.dumps({"object": "list", "data": [LISTED]}).encode())]
        if self.chat:
            return self.chat()
        if path == "/v1/chat/completions" and json.loads(body).get("stream"):
            return list(_sse())
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return [http_response(json.dumps(_completion("chat.completion", [choice])).encode())]


class _RecordedTls:
    """A server's end of TLS over a socket, with a copy of what comes in."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, record: bytearray) -> None:
        self._socket, self._record = connection, record
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._do(self.object.do_handshake)

    def receive(self) -> bytes:
        """Some bytes; none at the end."""
        try:
            return bytes(self._do(lambda: self.object.read(65536)))
        except ssl.SSLZeroReturnError:
            return b""

    def send(self, data: bytes) -> None:
        self._do(lambda: self.object.write(data))

    def _do(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                result = call()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._socket.recv(65536)
                self._record += data
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
                continue
            self._flush()
            return result

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._socket.sendall(data)


def http_response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole HTTP response. headers: with _ for -."""
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def _completion(kind: str, choices: list[Json]) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "smollm2", "choices": choices}


def _sse() -> Iterator[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    head += b'Access-Control-Allow-Origin: *\r\nAlt-Svc: h3=":443"\r\n\r\n'
    for index, word in enumerate(WORDS):
        delta = {"role": "assistant", "content": word}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield (b"" if index else head) + _chunk(json.dumps(_completion("chat.completion.chunk", [choice])))
    yield _chunk("[DONE]") + b"0\r\n\r\n"


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def policy_text(tee: SoftTee, drop: str = "", **changes: str) -> str:
    """A policy that the service meets. changes: TOML values by field; drop: fields to leave out, with spaces."""
    report = tee.measured()
    values = {
        "expires": "2099-01-01T00:00:00Z",
        "unpinned": "[]",
        "mrtd": f'"{report.mr_td.hex()}"',
        "rtmr0": f'"{report.rtmr0.hex()}"',
        "rtmr1": f'"{report.rtmr1.hex()}"',
        "rtmr2": f'"{report.rtmr2.hex()}"',
        "rtmr3": f'"{report.rtmr3.hex()}"',
        "mr_config_id": f'"{report.mr_config_id.hex()}"',
        "mr_seam": f'"{report.mr_seam.hex()}"',
        "td_attributes": f'"{report.td_attributes.hex()}"',
        "xfam": f'"{report.xfam.hex()}"',
        "tcb_statuses": '["UpToDate"]',
        "advisories_allowed": "[]",
        "min_tcb_eval_data_number": "18",
        "collateral_max_age": '"14d"',
        "platforms": f'["{tee.pki.ppid.hex()}"]',
        "image": f'"{IMAGE}"',
        "config_sha256": f'"{CONFIG}"',
        "insecure_root": f'"""{tee.pki.root.public_bytes(serialization.Encoding.PEM).decode()}"""',
        "models": f'[{{name = "{MODEL["name"]}", sha256 = "{MODEL["sha256"]}"}}]',
    }
    values |= changes
    return "".join(f"{name} = {value}\n" for name, value in values.items() if name not in drop.split())
