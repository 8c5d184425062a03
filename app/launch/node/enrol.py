"""Joins a node to a confidential cluster: it verifies the head, attests itself, and gets certificate and token.

`enrol_service` is the head's half. Everything goes over one TLS connection, whose key the head's quote must name.
"""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from app.attestation.evidence import Evidence, EvidenceError, EvidenceSource
from app.attestation.peers import HEAD, NONCE_BYTES, WORKER, PeerTrust, report_data, said
from app.launch.node.certificate import node_names, spki
from app.launch.node.confidential import EnrolmentError
from app.launch.node.enrol_service import HELLO, JOIN, MOST_BODY_BYTES
from redoubt_verify.errors import AttestationError, printable
from redoubt_verify.sslcontext import context, peer_spki
from redoubt_verify.verify import strict_json

_TIMEOUT_S = 30.0


class _RefusedError(RuntimeError):
    """The head has refused; the message is the head's."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The credentials of a cluster's node."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate
    """Certificate of the cluster's authority, which signed the node's."""
    token: str
    """Ray's token."""

    @property
    def authority_spki_sha256(self) -> str:
        """SHA-256 of the authority's SubjectPublicKeyInfo, hex."""
        key = self.authority.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return hashlib.sha256(spki(key)).hexdigest()


def enrol(
    host: str, port: int, *, source: EvidenceSource, trust: PeerTrust, address: str, timeout_s: float
) -> Membership:
    """Joins the cluster whose head answers at host:port. Raises EnrolmentError.

    Args:
        host: the head.
        port: of the head's enrolment service.
        source: makes this node's quotes, on an event loop of its own.
        trust: what is accepted as a head.
        address: this node's, for its certificate.
        timeout_s: limit for one of this node's quotes.
    """
    where = f"The head at {host}:{port}"
    key = ec.generate_private_key(ec.SECP256R1())
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context())
    with contextlib.closing(connection):
        try:
            connection.connect()
            connection.auto_open = 0  # a second connection could end at another key
            return _Enrolment(connection, key, source, trust, timeout_s).join(address)
        except AttestationError as error:
            raise EnrolmentError(f"{where} does not prove that it is of this cluster: {error}") from error
        except EvidenceError as error:
            raise EnrolmentError(f"This node gets no quote for the head: {error}") from error
        except _RefusedError as error:
            raise EnrolmentError(f"{where} does not take this node: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise EnrolmentError(f"{where} does not take nodes in yet: {error!r}") from error


class _Enrolment:
    def __init__(
        self,
        connection: http.client.HTTPSConnection,
        key: ec.EllipticCurvePrivateKey,
        source: EvidenceSource,
        trust: PeerTrust,
        timeout_s: float,
    ) -> None:
        self._connection, self._key, self._source = connection, key, source
        self._trust, self._timeout_s = trust, timeout_s

    def join(self, address: str) -> Membership:
        head_spki = peer_spki(self._connection.sock)
        nonce, own_spki = secrets.token_bytes(NONCE_BYTES), spki(self._key.public_key())
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .add_extension(node_names(address), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        hello = self._post(
            HELLO, nonce=nonce.hex(), request=base64.b64encode(request.public_bytes(Encoding.DER)).decode()
        )
        try:
            head_nonce = bytes.fromhex(hello["nonce"])
            head_quote = base64.b64decode(hello["quote"], validate=True)
            if len(head_nonce) != NONCE_BYTES:
                raise ValueError("a nonce of another length")
        except (KeyError, TypeError, ValueError) as error:
            raise AttestationError("malformed", f"the head's greeting: {error!r}") from None
        nonces = {"head_nonce": head_nonce, "worker_nonce": nonce}
        own = self._quote(said(WORKER, **nonces, own_spki=own_spki, peer_spki=head_spki))
        heads = said(HEAD, **nonces, own_spki=head_spki, peer_spki=own_spki)
        self._trust.check(own, head_quote, heads, time.time())
        answer = self._post(JOIN, nonce=head_nonce.hex(), quote=base64.b64encode(own.quote).decode())
        try:
            certificate, authority = (
                x509.load_pem_x509_certificate(answer[name].encode()) for name in ("certificate", "authority")
            )
            certificate.verify_directly_issued_by(authority)
            if certificate.public_key() != self._key.public_key():
                raise ValueError("a certificate of another key")
            token = str(answer["token"])
        except (KeyError, TypeError, AttributeError, ValueError, InvalidSignature) as error:
            raise AttestationError("malformed", f"the head's certificates: {error!r}") from None
        return Membership(self._key, certificate, authority, token)

    def _quote(self, statement: bytes) -> Evidence:
        async def quote() -> Evidence:
            async with asyncio.timeout(self._timeout_s):
                return await self._source.quote(report_data(statement))

        try:
            return asyncio.run(quote())
        except TimeoutError:
            raise EvidenceError(f"none within {self._timeout_s:g} s") from None

    def _post(self, path: str, **values: str) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(values), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        body = response.read(MOST_BODY_BYTES + 1)
        if len(body) > MOST_BODY_BYTES:
            raise AttestationError("too_large", f"an answer of over {MOST_BODY_BYTES} bytes")
        answer = strict_json(body, "the head's answer")
        if response.status != http.client.OK:
            try:
                raise _RefusedError(printable(str(answer["error"]["message"])))
            except (KeyError, TypeError):
                raise _RefusedError(f"status {response.status}") from None
        return answer
