"""Gives a confidential node the certificate and the token with which its Ray is part of the cluster.

A head makes both, and from then on enrols others (`enrol_service`) and accepts the measured configuration
(`serve_gate`). A worker gets them from the head (`enrol`). They lie in a folder in memory, for this user only.
"""

import secrets
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from app.attestation.evidence import AgentEvidence, SoftEvidence
from app.attestation.peers import PeerTrust
from app.attestation.quoting import QuoteQueue
from app.launch.node.certificate import Authority, issue_certificate, spki, write_files
from app.launch.node.confidential import ENROLMENT_PORT, INNER_DASHBOARD_PORT, Confidential
from app.launch.node.enrol import enrol
from app.launch.node.enrol_service import EnrolService
from app.launch.node.options import DASHBOARD_PORT
from app.launch.serve_gate import ServeGate
from app.launch.small_server import SmallServer
from app.settings.knobs import SettingsError


@dataclass(frozen=True, slots=True)
class Joined:
    """A node that is part of its cluster."""

    variables: dict[str, str]
    """Variables for its Ray: certificate and token."""
    authority_spki_sha256: str
    """SHA-256 in hex of the SubjectPublicKeyInfo of the cluster's authority."""
    servers: tuple[SmallServer, ...] = ()

    def loss(self) -> str | None:
        """Which server has ended; None while all run."""
        ports = [str(server.port) for server in self.servers if not server.is_running()]
        return f"The server on port {', '.join(ports)} has ended." if ports else None


@contextmanager
def as_head(node: Confidential, address: str, folder: Path) -> Iterator[Joined]:
    """Makes an authority and a token, and serves other nodes on `address`. folder: for the files.

    Raises SettingsError.
    """
    assert node.operator_token is not None
    authority, token = Authority.make(), secrets.token_hex(32)
    variables = issue_certificate(authority, folder, address) | _token_variables(folder, token)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(variables["RAY_TLS_SERVER_CERT"], variables["RAY_TLS_SERVER_KEY"])
    source = node.source()
    service = EnrolService(
        QuoteQueue(source, node.attestation.quote_timeout_s),
        _trust(node, source),
        authority,
        token,
        _spki_of(Path(variables["RAY_TLS_SERVER_CERT"])),
    )
    gate = ServeGate(
        node.config, operator_token=node.operator_token, dashboard_port=INNER_DASHBOARD_PORT, ray_token=token
    )
    with ExitStack() as stack:
        servers = []
        for application, port, tls in ((service.application(), ENROLMENT_PORT, context), (gate, DASHBOARD_PORT, None)):
            try:
                servers.append(stack.enter_context(closing(SmallServer(application, address, port, tls))))
            except OSError as error:
                raise SettingsError(f"{address}:{port}: {error.strerror or error}") from error
        yield Joined(variables, authority.spki_sha256, tuple(servers))


def as_worker(node: Confidential, head: str, address: str, folder: Path) -> Joined:
    """Gets certificate and token from the head at this host. Raises EnrolmentError, SettingsError."""
    source = node.source()
    member = enrol(
        head,
        ENROLMENT_PORT,
        source=source,
        trust=_trust(node, source),
        address=address,
        timeout_s=node.attestation.quote_timeout_s,
    )
    variables = write_files(folder, member.key, member.certificate, member.authority)
    return Joined(variables | _token_variables(folder, member.token), member.authority_spki_sha256)


def _trust(node: Confidential, source: AgentEvidence | SoftEvidence) -> PeerTrust:
    """The peers that a node accepts. source: its own."""
    return PeerTrust(node.more_rtmr0, source.tee.pki.root_der if isinstance(source, SoftEvidence) else None)


def _token_variables(folder: Path, token: str) -> dict[str, str]:
    path = folder / "ray_token"
    path.touch(mode=0o600)
    path.write_text(token)
    return {"RAY_AUTH_TOKEN_PATH": str(path)}


def _spki_of(path: Path) -> bytes:
    key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    return spki(key)  # type: ignore[arg-type]
