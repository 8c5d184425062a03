"""A test PKI in the shape of Intel's: certificates, revocation lists and collateral, all signed by keys made here.

Proves nothing about any machine. Knows no quotes (`soft`) and writes no files.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

_SGX_EXTENSION = "1.2.840.113741.1.13.1"
_SGX_EXTENSION_DER = bytes.fromhex("2a864886f84d010d01")
_SVNS = 16
_CERTIFICATES_VALID = datetime.timedelta(days=3650)

FMSPC = bytes.fromhex("50f0c0de0000")
PCE_SVN = 11
CPU_SVN = bytes([2] * _SVNS)
QE_MR_SIGNER = bytes.fromhex("50f7" * 16)
QE_ATTRIBUTES = bytes.fromhex("11" + "00" * 15)
QE_PROD_ID = 2
QE_SVN = 4


@dataclass(frozen=True, slots=True)
class CollateralKnobs:
    """Contents of the collateral; tests change one field at a time."""

    issued: datetime.datetime
    valid_for: datetime.timedelta = datetime.timedelta(days=30)
    tcb_status: str = "UpToDate"
    advisories: Sequence[str] = ()
    qe_status: str = "UpToDate"
    evaluation_number: int = 18
    fmspc: bytes = FMSPC
    required_tee_svn: bytes = bytes(_SVNS)
    """Lowest SVNs of the TDX module for which `tcb_status` is given."""
    revoked_pck: bool = False
    revoked_pck_ca: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    """Fields that replace those of the TCB info, before it is signed."""


@dataclass(frozen=True, slots=True)
class SoftPki:
    """A root, a PCK authority with one platform's PCK, and the key that signs TCB information."""

    root: x509.Certificate
    root_key: ec.EllipticCurvePrivateKey
    pck_ca: x509.Certificate
    pck_ca_key: ec.EllipticCurvePrivateKey
    pck: x509.Certificate
    pck_key: ec.EllipticCurvePrivateKey
    tcb_signing: x509.Certificate
    tcb_signing_key: ec.EllipticCurvePrivateKey
    ppid: bytes

    @classmethod
    def make(cls, now: datetime.datetime, ppid: bytes = bytes(range(16))) -> Self:
        """Makes new keys. now: certificates are valid from a day before it, for ten years. ppid: 16 bytes."""
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
        root_key, ca_key, pck_key, tcb_key = keys
        start = now - datetime.timedelta(days=1)
        root = _certificate("Redoubt Soft TEE Root (insecure)", root_key, None, root_key, start, authority=True)
        ca = _certificate("Redoubt Soft PCK CA (insecure)", ca_key, root, root_key, start, authority=True)
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(_SGX_EXTENSION), _sgx_extension(ppid))
        pck = _certificate("Redoubt Soft PCK (insecure)", pck_key, ca, ca_key, start, extension=extension)
        tcb = _certificate("Redoubt Soft TCB Signing (insecure)", tcb_key, root, root_key, start)
        return cls(root, root_key, ca, ca_key, pck, pck_key, tcb, tcb_key, ppid)

    @property
    def root_der(self) -> bytes:
        """The root's certificate, DER, without which no verifier accepts anything signed here."""
        return self.root.public_bytes(serialization.Encoding.DER)

    @property
    def pck_chain_pem(self) -> bytes:
        """PCK, its authority and the root, as in a quote."""
        return _pem(self.pck, self.pck_ca, self.root)

    def collateral(self, knobs: CollateralKnobs) -> dict[str, str]:
        """The collateral of Intel's service for the platform: nine strings, binary ones in hex."""
        tcb_info = json.dumps(_tcb_info(knobs), separators=(",", ":"))
        qe_identity = json.dumps(_qe_identity(knobs), separators=(",", ":"))
        tcb_chain = _pem(self.tcb_signing, self.root).decode()
        root_revoked = [self.pck_ca.serial_number] if knobs.revoked_pck_ca else []
        pck_revoked = [self.pck.serial_number] if knobs.revoked_pck else []
        return {
            "pck_crl_issuer_chain": _pem(self.pck_ca, self.root).decode(),
            "root_ca_crl": _crl(self.root, self.root_key, knobs, root_revoked).hex(),
            "pck_crl": _crl(self.pck_ca, self.pck_ca_key, knobs, pck_revoked).hex(),
            "tcb_info_issuer_chain": tcb_chain,
            "tcb_info": tcb_info,
            "tcb_info_signature": raw_signature(self.tcb_signing_key, tcb_info.encode()).hex(),
            "qe_identity_issuer_chain": tcb_chain,
            "qe_identity": qe_identity,
            "qe_identity_signature": raw_signature(self.tcb_signing_key, qe_identity.encode()).hex(),
        }

    def of_other_platform(self, now: datetime.datetime, ppid: bytes) -> Self:
        """Keeps the authorities, with another platform's PCK."""
        key = ec.generate_private_key(ec.SECP256R1())
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(_SGX_EXTENSION), _sgx_extension(ppid))
        start = now - datetime.timedelta(days=1)
        name = "Redoubt Soft PCK (insecure)"
        pck = _certificate(name, key, self.pck_ca, self.pck_ca_key, start, extension=extension)
        return replace(self, pck=pck, pck_key=key, ppid=ppid)


def raw_signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Signs with ECDSA over SHA-256; returns r || s, 64 bytes."""
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def raw_public_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns x || y, 64 bytes."""
    point = key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return point[1:]


def _tcb_info(knobs: CollateralKnobs) -> dict[str, Any]:
    module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
    level = {
        "tcb": {
            "sgxtcbcomponents": [{"svn": svn} for svn in CPU_SVN],
            "pcesvn": PCE_SVN,
            "tdxtcbcomponents": [{"svn": svn} for svn in knobs.required_tee_svn],
        },
        "tcbDate": _date(knobs.issued),
        "tcbStatus": knobs.tcb_status,
        "advisoryIDs": list(knobs.advisories),
    }
    return {
        "id": "TDX",
        "version": 3,
        "issueDate": _date(knobs.issued),
        "nextUpdate": _date(knobs.issued + knobs.valid_for),
        "fmspc": knobs.fmspc.hex().upper(),
        "pceId": "0000",
        "tcbType": 0,
        "tcbEvaluationDataNumber": knobs.evaluation_number,
        "tdxModule": module,
        "tdxModuleIdentities": [],
        "tcbLevels": [level],
        **knobs.more,
    }


def _qe_identity(knobs: CollateralKnobs) -> dict[str, Any]:
    return {
        "id": "TD_QE",
        "version": 2,
        "issueDate": _date(knobs.issued),
        "nextUpdate": _date(knobs.issued + knobs.valid_for),
        "tcbEvaluationDataNumber": knobs.evaluation_number,
        "miscselect": "00000000",
        "miscselectMask": "FFFFFFFF",
        "attributes": QE_ATTRIBUTES.hex().upper(),
        "attributesMask": "FBFFFFFFFFFFFFFF0000000000000000",
        "mrsigner": QE_MR_SIGNER.hex().upper(),
        "isvprodid": QE_PROD_ID,
        "tcbLevels": [{"tcb": {"isvsvn": QE_SVN}, "tcbDate": _date(knobs.issued), "tcbStatus": knobs.qe_status}],
    }


def _date(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    start: datetime.datetime,
    *,
    authority: bool = False,
    extension: x509.ExtensionType | None = None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _CERTIFICATES_VALID)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if extension:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _crl(
    issuer: x509.Certificate, key: ec.EllipticCurvePrivateKey, knobs: CollateralKnobs, revoked: list[int]
) -> bytes:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(knobs.issued)
        .next_update(knobs.issued + knobs.valid_for)
        .add_extension(x509.CRLNumber(1), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for serial in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(knobs.issued).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def _sgx_extension(ppid: bytes) -> bytes:
    """The certificate extension in which Intel names a platform (PCK Certificate and CRL Profile Specification)."""
    components = [_entry(b"\2" + bytes([index + 1]), _der(0x02, bytes([svn]))) for index, svn in enumerate(CPU_SVN)]
    tcb = [
        *components,
        _entry(b"\2\x11", _der(0x02, bytes([PCE_SVN]))),
        _entry(b"\2\x12", _der(0x04, CPU_SVN)),
    ]
    return _der(
        0x30,
        _entry(b"\1", _der(0x04, ppid))
        + _entry(b"\2", _der(0x30, b"".join(tcb)))
        + _entry(b"\3", _der(0x04, bytes(2)))
        + _entry(b"\4", _der(0x04, FMSPC))
        + _entry(b"\5", _der(0x0A, b"\1")),
    )


def _entry(oid_end: bytes, value: bytes) -> bytes:
    return _der(0x30, _der(0x06, _SGX_EXTENSION_DER + oid_end) + value)


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    size = bytes([length]) if length < 128 else b"\x82" + length.to_bytes(2, "big")
    return bytes([tag]) + size + content
