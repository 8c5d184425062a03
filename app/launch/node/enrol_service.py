"""Enrols nodes at a confidential cluster's head: attested nodes get certificates and Ray's token.

Two requests over TLS, whose key is in the head's quote:

    POST /v1/node/hello  {"nonce", "request"}    ->  {"nonce", "quote"}
    POST /v1/node/join   {"nonce", "quote"}      ->  {"certificate", "authority", "token"}

`request` is a certificate signing request: it proves that the node has the key that its quote names. The second
request's nonce is the head's from the first answer, good once and for a minute. Quotes are explained in
`app.attestation.peers`. Binary values are base64, nonces hexadecimal, certificates PEM.
"""

import base64
import binascii
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.attestation.evidence import Evidence, EvidenceError
from app.attestation.peers import HEAD, NONCE_BYTES, WORKER, PeerTrust, report_data, said
from app.attestation.quoting import BusyError, QuoteQueue
from app.launch.node.certificate import Authority, spki
from app.launch.small_server import BodyError, error, read_body
from redoubt_verify.errors import AttestationError
from redoubt_verify.tdx import MOST_QUOTE_BYTES
from redoubt_verify.verify import strict_json

HELLO, JOIN = "/v1/node/hello", "/v1/node/join"
MOST_BODY_BYTES = 2 * MOST_QUOTE_BYTES
_MOST_PENDING = 64
_PENDING_S = 60.0
_UNREADABLE = (
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_NONCE = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")


@dataclass(frozen=True, slots=True)
class _Pending:
    """A node that has said hello and not joined yet."""

    nonce: bytes
    request: x509.CertificateSigningRequest
    key: ec.EllipticCurvePublicKey
    own: Evidence
    """The head's evidence, made for this node."""
    until_s: float


class EnrolService:
    def __init__(self, quotes: QuoteQueue, trust: PeerTrust, authority: Authority, token: str, own_spki: bytes) -> None:
        """token: Ray's. own_spki: of the key of this service's TLS."""
        self._quotes = quotes
        self._trust = trust
        self._authority = authority
        self._token = token
        self._own_spki = own_spki
        self._pending: dict[bytes, _Pending] = {}

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route(path, _endpoint(handle), methods=["POST"])
                for path, handle in ((HELLO, self._hello), (JOIN, self._join))
            ]
        )

    async def _hello(self, values: dict[str, Any], client: str) -> JSONResponse:
        nonce, request = _nonce(values), _signing_request(values)
        key = request.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise AttestationError("malformed", "the node's key is not on P-256")
        now_s = time.monotonic()
        self._pending = {name: one for name, one in self._pending.items() if one.until_s > now_s}
        if len(self._pending) >= _MOST_PENDING:
            raise BusyError
        own_nonce = secrets.token_bytes(NONCE_BYTES)
        statement = said(HEAD, head_nonce=own_nonce, worker_nonce=nonce, own_spki=self._own_spki, peer_spki=spki(key))
        own = await self._quotes.quote(report_data(statement))
        self._pending[own_nonce] = _Pending(nonce, request, key, own, time.monotonic() + _PENDING_S)
        return _answer(nonce=own_nonce.hex(), quote=base64.b64encode(own.quote).decode())

    async def _join(self, values: dict[str, Any], client: str) -> JSONResponse:
        nonce, quote = _nonce(values), _bytes(values, "quote")
        pending = self._pending.pop(nonce, None)
        if pending is None or pending.until_s < time.monotonic():
            raise AttestationError("nonce", "the nonce is not one of this head, was used before, or is too old")
        statement = said(
            WORKER,
            head_nonce=nonce,
            worker_nonce=pending.nonce,
            own_spki=spki(pending.key),
            peer_spki=self._own_spki,
        )
        try:
            self._trust.check(pending.own, quote, statement, time.time())
        except AttestationError as refused:
            print(f"redoubt node: The node at {client} is refused: {refused}", flush=True)
            raise
        names = pending.request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        certificate = self._authority.sign(pending.key, names)
        print(f"redoubt node: The node at {client} has proved itself and joins.", flush=True)
        return _answer(
            certificate=certificate.public_bytes(Encoding.PEM).decode(),
            authority=self._authority.certificate.public_bytes(Encoding.PEM).decode(),
            token=self._token,
        )


_Handler = Callable[[dict[str, Any], str], Awaitable[JSONResponse]]


def _endpoint(handle: _Handler) -> Callable[[Request], Awaitable[JSONResponse]]:
    """Makes a route's endpoint, which passes on the body's values and the client's address, and words failures."""

    async def endpoint(request: Request) -> JSONResponse:
        client = request.client.host if request.client is not None else "unknown"
        try:
            return await handle(strict_json(await read_body(request, MOST_BODY_BYTES), "the request"), client)
        except BodyError as refused:
            return refused.response
        except BusyError:
            return error(429, "too_many_requests", "Too many nodes prove themselves at once.", {"Retry-After": "1"})
        except EvidenceError as failed:
            print(f"redoubt node: No quote for the node at {client}: {failed}", flush=True)
            return error(503, "attestation_unavailable", "The head can give no quote now.", {"Retry-After": "1"})
        except AttestationError as refused:
            return error(403 if refused.reason != "malformed" else 400, refused.reason, str(refused))

    return endpoint


def _answer(**values: str) -> JSONResponse:
    return JSONResponse(values, headers={"Cache-Control": "no-store"})


def _nonce(values: dict[str, Any]) -> bytes:
    text = values.get("nonce")
    if not isinstance(text, str) or not _NONCE.fullmatch(text):
        raise AttestationError("malformed", f"nonce takes {2 * NONCE_BYTES} lower-case hexadecimal digits")
    return bytes.fromhex(text)


def _bytes(values: dict[str, Any], name: str) -> bytes:
    text = values.get(name)
    try:
        if not isinstance(text, str):
            raise ValueError
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AttestationError("malformed", f"{name} takes base64") from None


def _signing_request(values: dict[str, Any]) -> x509.CertificateSigningRequest:
    """Parses a signing request. It must have a valid signature, and names of machines only."""
    data = _bytes(values, "request")
    try:
        request = x509.load_der_x509_csr(data)
        if not request.is_signature_valid:
            raise ValueError("its signature is wrong")
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not all(isinstance(name, x509.IPAddress | x509.DNSName) for name in names):
            raise ValueError("it names more than addresses and hosts")
    except (ValueError, TypeError, UnsupportedAlgorithm, *_UNREADABLE) as refused:
        raise AttestationError("malformed", f"request is not a certificate signing request: {refused}") from None
    return request
