"""Quotes and event logs as a TDX machine would make them, signed by a test PKI: for tests and for trying things out.

Proves nothing about any machine: a verifier believes these quotes only when it is given this PKI's root, and must then
call its verdict insecure. Knows no statements and no HTTP.
"""

import datetime
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from cryptography.hazmat.primitives.asymmetric import ec

from app.attestation import soft_pki
from app.attestation.soft_pki import CollateralKnobs, SoftPki, raw_public_key, raw_signature

_TEE_TYPE_TDX = 0x81
_INTEL_QE_VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
_EV_NO_ACTION, _EV_IPL = 3, 13
_SHA384 = 0x000C
REGISTERS = 4
"""The registers RTMR0 to RTMR3."""


@dataclass(frozen=True, slots=True)
class TdReport:
    """The body of a TDX quote in byte order; all fields but report_data are measurements."""

    tee_tcb_svn: bytes = bytes.fromhex("05000200000000000000000000000000")
    mr_seam: bytes = b"\x5e" * 48
    mr_signer_seam: bytes = bytes(48)
    seam_attributes: bytes = bytes(8)
    td_attributes: bytes = bytes.fromhex("0000001000000000")
    xfam: bytes = bytes.fromhex("e702060000000000")
    mr_td: bytes = b"\x7d" * 48
    mr_config_id: bytes = b"\xc1" * 48
    mr_owner: bytes = bytes(48)
    mr_owner_config: bytes = bytes(48)
    rtmr0: bytes = bytes(48)
    rtmr1: bytes = bytes(48)
    rtmr2: bytes = bytes(48)
    rtmr3: bytes = bytes(48)
    report_data: bytes = bytes(64)
    tee_tcb_svn2: bytes = bytes.fromhex("05000200000000000000000000000000")
    """TDX 1.5 only, as the next field."""
    mr_service_td: bytes = bytes(48)

    def encode(self, tdx15: bool) -> bytes:
        """Encodes 584 bytes for TDX 1.0, or 648 for TDX 1.5."""
        values = [getattr(self, entry.name) for entry in fields(self)]
        return b"".join(values if tdx15 else values[:-2])


@dataclass(frozen=True, slots=True)
class Event:
    """A measurement, which extends a register with the SHA-384 of its data."""

    register: int
    data: bytes

    @property
    def digest(self) -> bytes:
        return hashlib.sha384(self.data).digest()


DEFAULT_EVENTS = (
    Event(0, b"virtual firmware"),
    Event(0, b"VM size"),
    Event(1, b"kernel"),
    Event(2, b"kernel command line"),
    Event(2, b"initrd"),
)


def replay(events: Sequence[Event]) -> list[bytes]:
    """Returns the four registers after these events."""
    registers = [bytes(48)] * REGISTERS
    for event in events:
        registers[event.register] = hashlib.sha384(registers[event.register] + event.digest).digest()
    return registers


def event_log(events: Sequence[Event]) -> bytes:
    """Encodes the log in the TCG's binary format (crypto agile), as in a CCEL table."""
    algorithms = struct.pack("<IHH", 1, _SHA384, 48)
    spec_id = b"Spec ID Event03\0" + struct.pack("<IBBBB", 0, 0, 2, 0, 2) + algorithms + b"\0"
    log = struct.pack("<II20sI", 0, _EV_NO_ACTION, bytes(20), len(spec_id)) + spec_id
    for event in events:
        # Register 0 of the log is MRTD.
        log += struct.pack("<IIIH", event.register + 1, _EV_IPL, 1, _SHA384)
        log += event.digest + struct.pack("<I", len(event.data)) + event.data
    return log


@dataclass(slots=True)
class SoftTee:
    """A simulated machine that measures the given events and quotes them."""

    pki: SoftPki
    issued: datetime.datetime
    """Issue time of its collateral."""
    events: Sequence[Event] = DEFAULT_EVENTS
    report: TdReport = field(default_factory=TdReport)
    """Contents of each quote, except RTMR0 to RTMR3, which follow from the events, and the report data."""
    version: int = 4
    """Version of the quotes: 4 with a TDX 1.0 body, 5 with TDX 1.5."""

    @classmethod
    def make(cls, now: datetime.datetime | None = None, pki: SoftPki | None = None) -> "SoftTee":
        """Makes one with collateral issued an hour before `now`. pki: None: new keys."""
        now = now or datetime.datetime.now(datetime.UTC)
        return cls(pki or SoftPki.make(now), (now - datetime.timedelta(hours=1)).replace(microsecond=0))

    @property
    def event_log(self) -> bytes:
        return event_log(self.events)

    def collateral(self) -> dict[str, str]:
        """Returns collateral that finds the platform up to date."""
        return self.pki.collateral(CollateralKnobs(self.issued))

    def measured(self) -> TdReport:
        """Returns the report with its registers filled in."""
        rtmr0, rtmr1, rtmr2, rtmr3 = replay(self.events)
        return replace(self.report, rtmr0=rtmr0, rtmr1=rtmr1, rtmr2=rtmr2, rtmr3=rtmr3)

    def quote(self, report_data: bytes) -> bytes:
        assert len(report_data) == 64
        return encode_quote(self.pki, replace(self.measured(), report_data=report_data), self.version)


def encode_quote(pki: SoftPki, report: TdReport, version: int = 4, tee_type: int = _TEE_TYPE_TDX) -> bytes:
    """A signed quote (Intel TDX DCAP Quote Generation Library, Quote Format). version: 4, or 5 with a TDX 1.5 body."""
    header = struct.pack("<HHIHH16s20s", version, 2, tee_type, 0, 0, _INTEL_QE_VENDOR, bytes(20))
    body = report.encode(tdx15=version == 5)
    if version == 5:
        header += struct.pack("<HI", 3, len(body))
    attestation_key = ec.generate_private_key(ec.SECP256R1())
    public_key = raw_public_key(attestation_key)
    qe_auth = bytes(range(32))
    qe_report = _qe_report(hashlib.sha256(public_key + qe_auth).digest())
    chain = pki.pck_chain_pem
    certification = (
        qe_report
        + raw_signature(pki.pck_key, qe_report)
        + struct.pack("<H", len(qe_auth))
        + qe_auth
        + struct.pack("<HI", 5, len(chain))
        + chain
    )
    signed = header + body
    signature = raw_signature(attestation_key, signed)
    data = signature + public_key + struct.pack("<HI", 6, len(certification)) + certification
    return signed + struct.pack("<I", len(data)) + data


def _qe_report(key_digest: bytes) -> bytes:
    """The quoting enclave's SGX report, 384 bytes."""
    return struct.pack(
        "<16sI28s16s32s32s32s96sHH60s64s",
        soft_pki.CPU_SVN,
        0,
        bytes(28),
        soft_pki.QE_ATTRIBUTES,
        b"\x0e" * 32,
        bytes(32),
        soft_pki.QE_MR_SIGNER,
        bytes(96),
        soft_pki.QE_PROD_ID,
        soft_pki.QE_SVN,
        bytes(60),
        key_digest + bytes(32),
    )
