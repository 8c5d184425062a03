"""A node's TLS certificate for Ray, signed by the cluster's authority, with the node's address in it.

With RAY_USE_TLS, Ray's nodes accept only connections with a certificate of that authority. A new key is made at each
start, in the node's private folder. The authority comes from a folder, or is made in memory by the head of a
confidential cluster.
"""

import datetime
import hashlib
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.settings.knobs import SettingsError

_VALID_FOR = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority that certifies a cluster's nodes."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads an authority from PEM files in `folder`. Raises SettingsError naming the file.

        The files are `ca.crt` and `ca.key`, or a Kubernetes TLS secret's `tls.crt` and `tls.key`.
        """
        prefix = "ca" if (folder / "ca.key").exists() else "tls"
        certificate_path, key_path = folder / f"{prefix}.crt", folder / f"{prefix}.key"
        try:
            certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        except OSError as error:
            raise SettingsError(f"{certificate_path}: not a readable certificate: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"{certificate_path}: not a readable certificate: {error}") from error
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(f"{key_path}: not a readable private key: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise SettingsError(f"{key_path}: the key is neither of an elliptic curve nor of RSA")
        return cls(certificate, key)

    @classmethod
    def make(cls) -> Self:
        """Makes an authority in memory only."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redoubt cluster")])
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @property
    def spki_sha256(self) -> str:
        return hashlib.sha256(spki(self.key.public_key())).hexdigest()

    def sign(self, public_key: ec.EllipticCurvePublicKey, names: x509.SubjectAlternativeName) -> x509.Certificate:
        """Signs a node's certificate, for a year or as long as the authority's own."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redoubt node")])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            _builder(name, self.certificate.subject, public_key, self.certificate.not_valid_after_utc)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def issue_certificate(authority: Authority, folder: Path, address: str) -> dict[str, str]:
    """Writes a new key and its certificate into `folder`; returns the variables with which Ray uses them."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = authority.sign(key.public_key(), node_names(address))
    return write_files(folder, key, certificate, authority.certificate)


def node_names(address: str) -> x509.SubjectAlternativeName:
    """This node's names for its certificate. address: the one that other nodes use."""
    return x509.SubjectAlternativeName(
        [
            x509.IPAddress(ipaddress.ip_address(address)),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
            x509.DNSName(socket.gethostname()),
        ]
    )


def write_files(
    folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, authority: x509.Certificate
) -> dict[str, str]:
    """Writes the three files, the key for this user only; returns the variables with which Ray uses them."""
    key_path, certificate_path, authority_path = folder / "tls.key", folder / "tls.crt", folder / "ca.crt"
    key_path.touch(mode=0o600)
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    authority_path.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate_path),
        "RAY_TLS_SERVER_KEY": str(key_path),
        "RAY_TLS_CA_CERT": str(authority_path),
    }


def spki(key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> bytes:
    """A key's SubjectPublicKeyInfo in DER."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    last: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    """last: the latest end of the certificate's validity."""
    now = datetime.datetime.now(datetime.UTC)
    end = now + _VALID_FOR
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(end if last is None else min(end, last))
    )
