"""A node's own TLS certificate for Ray, signed by the cluster's authority, with the node's address in it.

Ray's nodes then take each other's connections only with a certificate of that authority (RAY_USE_TLS). The key is made
anew at each start and lies in the node's private folder.
"""

import datetime
import ipaddress
import socket
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.settings import SettingsError

_VALID_FOR = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(minutes=10)


def issue_certificate(authority: Path, folder: Path, address: str) -> dict[str, str]:
    """Writes key and certificate into `folder` and returns the variables with which Ray uses them.

    authority: a folder with `ca.crt` and `ca.key` (or a Kubernetes TLS secret's `tls.crt` and `tls.key`), PEM. Raises
    SettingsError naming the file.
    """
    authority_certificate, authority_key = _read_authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    names = [
        x509.IPAddress(ipaddress.ip_address(address)),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName("localhost"),
        x509.DNSName(socket.gethostname()),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redoubt node")]))
        .issuer_name(authority_certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(min(now + _VALID_FOR, authority_certificate.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    key_path, certificate_path, authority_path = folder / "tls.key", folder / "tls.crt", folder / "ca.crt"
    key_path.touch(mode=0o600)
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    authority_path.write_bytes(authority_certificate.public_bytes(serialization.Encoding.PEM))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate_path),
        "RAY_TLS_SERVER_KEY": str(key_path),
        "RAY_TLS_CA_CERT": str(authority_path),
    }


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]:
    prefix = "ca" if (folder / "ca.key").exists() else "tls"
    certificate_path, key_path = folder / f"{prefix}.crt", folder / f"{prefix}.key"
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{certificate_path}: not a readable certificate: {error}") from error
    try:
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{key_path}: not a readable private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise SettingsError(f"{key_path}: the key is neither of an elliptic curve nor of RSA")
    return certificate, key
