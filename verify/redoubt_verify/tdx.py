"""The bytes of a TDX quote: its exact length and the fields of the TD report in it.

Reads what is there and checks its form. Signatures are dcap-qvl's (`verify`); what a field should say is the policy's.
Source: Intel TDX DCAP Quote Generation Library, Quote Format, versions 4 and 5.
"""

import struct
from dataclasses import dataclass

from redoubt_verify.errors import AttestationError

MOST_QUOTE_BYTES = 16 << 10
_HEADER = struct.Struct("<HHI4s16s20s")
_ECDSA_P256 = 2
_TEE_TDX = 0x81
_BODY_TDX_10, _BODY_TDX_15 = 2, 3
_PCK_CHAIN, _QE_REPORT_CERTIFICATION = 5, 6
_SIGNATURE_AND_KEY = 64 + 64
_QE_REPORT_AND_SIGNATURE = 384 + 64

# Name and size of each field of the report, in the order of its bytes.
_Layout = tuple[tuple[str, int], ...]
_TDX_10: _Layout = (
    ("tee_tcb_svn", 16),
    ("mr_seam", 48),
    ("mr_signer_seam", 48),
    ("seam_attributes", 8),
    ("td_attributes", 8),
    ("xfam", 8),
    ("mrtd", 48),
    ("mr_config_id", 48),
    ("mr_owner", 48),
    ("mr_owner_config", 48),
    ("rtmr0", 48),
    ("rtmr1", 48),
    ("rtmr2", 48),
    ("rtmr3", 48),
    ("report_data", 64),
)
_TDX_15: _Layout = (*_TDX_10, ("tee_tcb_svn2", 16), ("mr_service_td", 48))


@dataclass(frozen=True, slots=True)
class Report:
    """The fields of a quote about its trust domain."""

    version: int
    """Version of the quote: 4 or 5."""
    fields: dict[str, bytes]
    """Fields by name; `mr_service_td` and `tee_tcb_svn2` with TDX 1.5 only."""

    @property
    def debug(self) -> bool:
        """Whether the host may read the trust domain's memory (attribute bits TUD)."""
        return self.fields["td_attributes"][0] != 0

    @property
    def rtmrs(self) -> list[bytes]:
        """The registers RTMR0 to RTMR3."""
        return [self.fields[f"rtmr{index}"] for index in range(4)]


def parse(quote: bytes) -> Report:
    """The report in a quote of exactly these bytes. Raises AttestationError: malformed, too_large."""
    if len(quote) > MOST_QUOTE_BYTES:
        raise AttestationError("too_large", f"a quote of {len(quote)} bytes")
    try:
        version, key_type, tee_type, *_ = _HEADER.unpack_from(quote)
        if version not in (4, 5) or key_type != _ECDSA_P256 or tee_type != _TEE_TDX:
            raise _malformed(f"not a TDX quote of version 4 or 5 (version {version}, TEE {tee_type:#x})")
        layout, start = _TDX_10, _HEADER.size
        if version == 5:
            body_type, size = struct.unpack_from("<HI", quote, start)
            layout, start = {_BODY_TDX_10: _TDX_10, _BODY_TDX_15: _TDX_15}.get(body_type, ()), start + 6
            if not layout or size != sum(width for _, width in layout):
                raise _malformed(f"a body of type {body_type} with {size} bytes")
        end = start + sum(width for _, width in layout)
        _check_signature_length(quote, end)
    except struct.error:
        raise _malformed("the quote is truncated") from None
    fields = {}
    for name, width in layout:
        fields[name], start = quote[start : start + width], start + width
    return Report(version, fields)


def _check_signature_length(quote: bytes, start: int) -> None:
    """Each length inside the signature data must use up the bytes around it exactly."""
    (size,) = struct.unpack_from("<I", quote, start)
    _exactly(quote, start + 4 + size)
    start += 4 + _SIGNATURE_AND_KEY
    kind, size = struct.unpack_from("<HI", quote, start)
    _exactly(quote, start + 6 + size)
    start += 6 + _QE_REPORT_AND_SIGNATURE
    (size,) = struct.unpack_from("<H", quote, start)
    start += 2 + size
    inner_kind, size = struct.unpack_from("<HI", quote, start)
    _exactly(quote, start + 6 + size)
    if (kind, inner_kind) != (_QE_REPORT_CERTIFICATION, _PCK_CHAIN):
        raise _malformed(f"certification data of types {kind} and {inner_kind}: a PCK chain is needed")


def _exactly(quote: bytes, end: int) -> None:
    if end != len(quote):
        raise _malformed(f"{len(quote)} bytes where the quote says {end}")


def _malformed(message: str) -> AttestationError:
    return AttestationError("malformed", message)
