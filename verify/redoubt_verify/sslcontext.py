"""TLS as the verified connection needs it, and the key at its other end.

No authority vouches for the server's certificate, and its name and dates mean nothing: the quote vouches for its key
(`verify`). TLS itself proves that the other side has that key.
"""

import hashlib
import ssl
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from redoubt_verify.errors import AttestationError


def context() -> ssl.SSLContext:
    """TLS 1.3 without tickets, so that no session is resumed and no early data sent; any certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.options |= ssl.OP_NO_TICKET
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.set_alpn_protocols(["http/1.1"])
    return made


def peer_spki_sha256(connection: Any) -> str:
    """SHA-256 of `peer_spki`, hex."""
    return hashlib.sha256(peer_spki(connection)).hexdigest()


def peer_spki(connection: Any) -> bytes:
    """The peer's SubjectPublicKeyInfo in DER, of an ssl.SSLObject or SSLSocket after its handshake.

    Raises AttestationError (unreachable) for a connection that is not TLS 1.3 and HTTP/1.1, or has no certificate.
    """
    if connection is None or connection.version() != "TLSv1.3" or connection.session_reused:
        raise AttestationError("unreachable", "not a new connection of TLS 1.3")
    if connection.selected_alpn_protocol() not in (None, "http/1.1"):
        raise AttestationError("unreachable", "the server insists on another protocol than HTTP/1.1")
    certificate = connection.getpeercert(True)
    if not certificate:
        raise AttestationError("unreachable", "the server has no certificate")
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise AttestationError("malformed", "the server's certificate can't be read") from error
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
