"""Nodes prove themselves to each other over a real TLS server, with soft evidence; then one of the two lies."""

import base64
import dataclasses
import hashlib
import http.client
import json
import secrets
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from app.attestation.evidence import Evidence, EvidenceError, SoftEvidence
from app.attestation.peers import HEAD, WORKER, PeerTrust, report_data, said
from app.attestation.quoting import QuoteQueue
from app.attestation.soft import DEFAULT_EVENTS, Event, SoftTee
from app.launch.node import enrol_service
from app.launch.node.certificate import Authority, issue_certificate, node_names, spki
from app.launch.node.confidential import EnrolmentError
from app.launch.node.enrol import enrol
from app.launch.node.enrol_service import HELLO, JOIN, EnrolService
from app.launch.small_server import SmallServer
from redoubt_verify.errors import AttestationError
from redoubt_verify.sslcontext import context as any_certificate
from redoubt_verify.sslcontext import peer_spki
from tests.service.running import free_port

TOKEN = "Ray's own token"
LARGE = (Event(0, b"virtual firmware"), Event(0, b"another VM size"), *DEFAULT_EVENTS[2:])


@pytest.fixture(autouse=True)
def patient_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between two requests of a node, or within one, ends no connection."""
    for name in ("_KEEP_ALIVE_S", "_BODY_TIMEOUT_S"):
        monkeypatch.setattr(f"app.launch.small_server.{name}", 120)


@pytest.fixture(scope="module")
def machine() -> SoftTee:
    """Keys take a moment to make: one platform for all tests."""
    return SoftTee.make()


def trust(tee: SoftTee, *more_rtmr0: bytes) -> PeerTrust:
    return PeerTrust(frozenset(more_rtmr0), tee.pki.root_der)


@dataclass
class Head:
    """A head's server. What it answers with can be changed."""

    tee: SoftTee
    folder: Path
    trust: PeerTrust
    source: Any = None
    authority: Authority = field(default_factory=Authority.make)

    @contextmanager
    def running(self) -> Iterator[int]:
        """The port."""
        files = issue_certificate(self.authority, self.folder, "127.0.0.1")
        certificate = Path(files["RAY_TLS_SERVER_CERT"])
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, files["RAY_TLS_SERVER_KEY"])
        key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        quotes = QuoteQueue(self.source or SoftEvidence(self.tee), 60)
        service = EnrolService(quotes, self.trust, self.authority, TOKEN, spki(key))
        with closing(SmallServer(service.application(), "127.0.0.1", 0, tls)) as server:
            yield server.port


@pytest.fixture
def head(machine: SoftTee, tmp_path: Path) -> Head:
    return Head(machine, tmp_path, trust(machine))


@pytest.fixture
def port(head: Head) -> Iterator[int]:
    with head.running() as found:
        yield found


class Rogue:
    """A node's half by hand, over one connection: each step may be wrong."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=any_certificate())
        self._connection.connect()
        self.head_spki = peer_spki(self._connection.sock)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.nonce = secrets.token_bytes(32)

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, values: Any) -> tuple[int, dict[str, Any]]:
        """values: an object, or a body as it is."""
        body = values if isinstance(values, bytes) else json.dumps(values).encode()
        self._connection.request("POST", path, body)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def hello(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        return self.post(HELLO, {"nonce": self.nonce.hex(), "request": signing_request(self.key)} | changes)

    def statement(self, head_nonce: str, role: bytes = WORKER, **changes: bytes) -> bytes:
        values = {
            "head_nonce": bytes.fromhex(head_nonce),
            "worker_nonce": self.nonce,
            "own_spki": spki(self.key.public_key()),
            "peer_spki": self.head_spki,
        }
        return said(role, **values | changes)

    def join(self, head_nonce: str, quote: bytes) -> tuple[int, dict[str, Any]]:
        return self.post(JOIN, {"nonce": head_nonce, "quote": base64.b64encode(quote).decode()})


@pytest.fixture
def rogue(port: int) -> Iterator[Rogue]:
    with closing(Rogue(port)) as made:
        yield made


def signing_request(key: Any, names: x509.SubjectAlternativeName | None = None) -> str:
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    made = made.add_extension(names or node_names("127.0.0.1"), critical=False)
    return base64.b64encode(made.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)).decode()


def join(port: int, tee: SoftTee, own_trust: PeerTrust | None = None) -> Any:
    """An honest node of this machine joins."""
    source = SoftEvidence(tee)
    return enrol("127.0.0.1", port, source=source, trust=own_trust or trust(tee), address="10.1.2.3", timeout_s=60)


def assert_refused(answer: tuple[int, dict[str, Any]], reason: str, status: int = 403) -> None:
    got, body = answer
    assert (got, body["error"]["code"]) == (status, reason), body
    assert TOKEN not in json.dumps(body)


def changed(tee: SoftTee, **report: bytes) -> SoftTee:
    """A machine of the same platform that measures something else."""
    return dataclasses.replace(tee, report=dataclasses.replace(tee.report, **report))


def test_an_equal_node_gets_certificate_and_token(head: Head, port: int, machine: SoftTee) -> None:
    member = join(port, machine)
    assert member.token == TOKEN
    assert member.authority_spki_sha256 == head.authority.spki_sha256
    member.certificate.verify_directly_issued_by(head.authority.certificate)
    names = member.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.1.2.3" in map(str, names.get_values_for_type(x509.IPAddress))
    assert not member.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert join(port, machine).certificate.serial_number != member.certificate.serial_number


OTHERS: dict[str, tuple[str, Callable[[SoftTee], SoftTee]]] = {
    "firmware": ("measurement", lambda tee: changed(tee, mr_td=b"\x01" * 48)),
    "kernel": ("measurement", lambda tee: dataclasses.replace(tee, events=(*DEFAULT_EVENTS, Event(1, b"other")))),
    "command line": ("measurement", lambda tee: dataclasses.replace(tee, events=(*DEFAULT_EVENTS, Event(2, b"other")))),
    "at run time": ("measurement", lambda tee: dataclasses.replace(tee, events=(*DEFAULT_EVENTS, Event(3, b"other")))),
    "size": ("measurement", lambda tee: dataclasses.replace(tee, events=LARGE)),
    "initdata": ("config_digest", lambda tee: changed(tee, mr_config_id=b"\x01" * 48)),
    "TDX module": ("measurement", lambda tee: changed(tee, mr_seam=b"\x01" * 48)),
    "attributes": ("measurement", lambda tee: changed(tee, td_attributes=bytes.fromhex("0000001080000000"))),
    "XFAM": ("measurement", lambda tee: changed(tee, xfam=bytes.fromhex("e602060000000000"))),
    "debug": ("debug_td", lambda tee: changed(tee, td_attributes=bytes.fromhex("0100001000000000"))),
    "a service TD": (
        "measurement",
        lambda tee: dataclasses.replace(changed(tee, mr_service_td=b"\x01" * 48), version=5),
    ),
    "another root": ("quote_signature", lambda tee: SoftTee.make()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_rogue_node_stays_out(name: str, machine: SoftTee, rogue: Rogue, capfd: pytest.CaptureFixture[str]) -> None:
    reason, change = OTHERS[name]
    _, hello = rogue.hello()
    quote = change(machine).quote(report_data(rogue.statement(hello["nonce"])))
    assert_refused(rogue.join(hello["nonce"], quote), reason)
    assert f"The node at 127.0.0.1 is refused: {reason}" in capfd.readouterr().out


@pytest.mark.parametrize("name", OTHERS)
def test_a_rogue_head_gets_no_quote_and_no_node(
    name: str, machine: SoftTee, head: Head, capfd: pytest.CaptureFixture[str]
) -> None:
    reason, change = OTHERS[name]
    other = change(machine)
    # The head would take everybody.
    head.tee, head.trust = other, trust(other)
    with head.running() as port, pytest.raises(EnrolmentError, match=f"does not prove that it .*: {reason}"):
        join(port, machine, trust(machine))
    assert "The node at" not in capfd.readouterr().out


def test_a_debug_node_does_not_take_its_like(machine: SoftTee, head: Head) -> None:
    head.tee = changed(machine, td_attributes=bytes.fromhex("0100001000000000"))
    with head.running() as port, pytest.raises(EnrolmentError, match="debug_td"):
        join(port, head.tee)


def test_another_size_is_taken_when_it_is_listed(machine: SoftTee, head: Head) -> None:
    large = dataclasses.replace(machine, events=LARGE)
    head.trust = trust(machine, large.measured().rtmr0)
    with head.running() as port:
        with pytest.raises(EnrolmentError, match="measurement: rtmr0"):
            join(port, large)
        assert join(port, large, trust(machine, machine.measured().rtmr0)).token == TOKEN


STATEMENTS: dict[str, Callable[[Rogue, str], bytes]] = {
    "the head's role": lambda rogue, nonce: rogue.statement(nonce, HEAD),
    "another nonce of the head": lambda rogue, nonce: rogue.statement(bytes(32).hex()),
    "another nonce of its own": lambda rogue, nonce: rogue.statement(nonce, worker_nonce=bytes(32)),
    "another key": lambda rogue, nonce: rogue.statement(nonce, own_spki=other_spki()),
    "another head's key": lambda rogue, nonce: rogue.statement(nonce, peer_spki=other_spki()),
    "keys the other way round": lambda rogue, nonce: rogue.statement(
        nonce, own_spki=rogue.head_spki, peer_spki=spki(rogue.key.public_key())
    ),
}


def other_spki() -> bytes:
    return spki(ec.generate_private_key(ec.SECP256R1()).public_key())


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_genuine_quote_for_anything_else_is_refused(name: str, machine: SoftTee, rogue: Rogue) -> None:
    _, hello = rogue.hello()
    quote = machine.quote(report_data(STATEMENTS[name](rogue, hello["nonce"])))
    assert_refused(rogue.join(hello["nonce"], quote), "report_data")


def test_the_heads_own_quote_reflected_is_refused(rogue: Rogue) -> None:
    _, hello = rogue.hello()
    assert_refused(rogue.join(hello["nonce"], base64.b64decode(hello["quote"])), "report_data")


def test_a_nodes_own_quote_reflected_is_refused(machine: SoftTee) -> None:
    nonces = {"head_nonce": b"\1" * 32, "worker_nonce": b"\2" * 32}
    head_spki, own_spki = other_spki(), other_spki()
    quote = machine.quote(report_data(said(WORKER, **nonces, own_spki=own_spki, peer_spki=head_spki)))
    own = Evidence(quote, b"", machine.collateral(), insecure=True)
    heads = said(HEAD, **nonces, own_spki=head_spki, peer_spki=own_spki)
    with pytest.raises(AttestationError, match="report_data"):
        trust(machine).check(own, quote, heads, time.time())


def test_a_nonce_is_good_once_and_not_for_long(machine: SoftTee, rogue: Rogue, monkeypatch: pytest.MonkeyPatch) -> None:
    _, hello = rogue.hello()
    quote = machine.quote(report_data(rogue.statement(hello["nonce"])))
    assert rogue.join(hello["nonce"], quote)[1]["token"] == TOKEN
    assert_refused(rogue.join(hello["nonce"], quote), "nonce")
    _, again = rogue.hello()
    assert_refused(rogue.join(again["nonce"], quote), "report_data")
    assert_refused(rogue.join(secrets.token_hex(32), quote), "nonce")
    monkeypatch.setattr(enrol_service, "_PENDING_S", -1.0)
    _, late = rogue.hello()
    quote = machine.quote(report_data(rogue.statement(late["nonce"])))
    assert_refused(rogue.join(late["nonce"], quote), "nonce")


def test_who_stands_between_them_is_noticed(machine: SoftTee, head: Head, port: int, tmp_path: Path) -> None:
    """A relay ends the node's TLS, and passes what it says on to the honest head."""
    folder = tmp_path / "relay"
    folder.mkdir()

    class Relayed:
        """The honest head's quote, for the node's own question."""

        async def quote(self, report_data: bytes) -> Evidence:
            with closing(Rogue(port)) as between:
                _, hello = between.hello()
            return Evidence(base64.b64decode(hello["quote"]), b"", machine.collateral())

    relay = Head(machine, folder, trust(machine), source=Relayed())
    with relay.running() as relayed, pytest.raises(EnrolmentError, match="report_data"):
        join(relayed, machine)


P256 = ec.generate_private_key(ec.SECP256R1())
REQUESTS: dict[str, Callable[[], dict[str, Any]]] = {
    "RSA": lambda: {"request": signing_request(rsa.generate_private_key(65537, 2048))},
    "another curve": lambda: {"request": signing_request(ec.generate_private_key(ec.SECP384R1()))},
    "a mailbox": lambda: {"request": signing_request(P256, x509.SubjectAlternativeName([x509.RFC822Name("a@b.c")]))},
    "another signature": lambda: {"request": resigned()},
    "no request": lambda: {"request": base64.b64encode(b"nonsense").decode()},
    "no base64": lambda: {"request": "?"},
    "a number": lambda: {"request": 1},
    "a short nonce": lambda: {"nonce": "00"},
    "upper case": lambda: {"nonce": "AB" * 32},
    "a list": lambda: {"nonce": ["00" * 32]},
}


def resigned() -> str:
    data = bytearray(base64.b64decode(signing_request(P256)))
    data[-1] ^= 1
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_malformed_greeting_costs_no_quote(name: str, machine: SoftTee, head: Head) -> None:
    class Unused:
        async def quote(self, report_data: bytes) -> Evidence:
            raise AssertionError

    head.source = Unused()
    with head.running() as port, closing(Rogue(port)) as rogue:
        assert_refused(rogue.hello(**REQUESTS[name]()), "malformed", 400)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"nonce": "1", "nonce": "2"}', b"\xff", b"[" * 20000])
def test_what_is_no_object_is_malformed(body: bytes, rogue: Rogue) -> None:
    for path in (HELLO, JOIN):
        assert_refused(rogue.post(path, body), "malformed", 400)


def test_bodies_are_bounded_and_other_paths_are_not_there(rogue: Rogue, port: int) -> None:
    assert_refused(rogue.post(JOIN, b" " * 40_000), "too_large", 413)
    for method, path in (("GET", HELLO), ("POST", "/v1/node"), ("PUT", JOIN)):
        with closing(http.client.HTTPSConnection("127.0.0.1", port, context=any_certificate())) as connection:
            connection.request(method, path)
            assert connection.getresponse().status in (404, 405)


def test_a_flood_is_refused(rogue: Rogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrol_service, "_MOST_PENDING", 8)
    assert [rogue.hello()[0] for _ in range(10)] == [200] * 8 + [429] * 2


def test_without_a_quote_the_head_says_so(head: Head, capfd: pytest.CaptureFixture[str], machine: SoftTee) -> None:
    class Away:
        async def quote(self, report_data: bytes) -> Evidence:
            raise EvidenceError("the agent is away")

    head.source = Away()
    with head.running() as port, pytest.raises(EnrolmentError, match=r"does not take this node: .*no quote now"):
        join(port, machine)
    assert "No quote for the node at 127.0.0.1: the agent is away" in capfd.readouterr().out


def test_without_collateral_nobody_is_taken(machine: SoftTee) -> None:
    quote = machine.quote(bytes(64))
    with pytest.raises(AttestationError, match="collateral_missing"):
        trust(machine).check(Evidence(quote, b""), quote, b"", 0)


def test_a_head_that_does_not_listen_yet_is_told(machine: SoftTee) -> None:
    port = free_port()
    with pytest.raises(EnrolmentError, match=f"The head at 127.0.0.1:{port} does not take nodes in yet"):
        join(port, machine)


def test_the_report_data_is_what_the_guide_says() -> None:
    statement = b"worker" + b"h" * 32 + b"w" * 32 + b"own key" + b"peer key"
    made = said(WORKER, head_nonce=b"h" * 32, worker_nonce=b"w" * 32, own_spki=b"own key", peer_spki=b"peer key")
    assert made == statement
    assert report_data(made) == hashlib.sha512(b"redoubt/node/v1\0" + statement).digest()
