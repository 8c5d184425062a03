"""Replays a boot's event log: what the runtime measurement registers must hold if the log is whole and in order.

Says nothing of what the events mean, and does not check that an event's data hashes to its digest: only digests count.
Source: TCG PC Client Platform Firmware Profile, "crypto agile" log; registers as in Intel's CCEL table.
"""

import hashlib
import struct

from redoubt_verify.errors import AttestationError

MOST_EVENT_LOG_BYTES = 256 << 10
_SHA384 = 0x000C
_DIGEST_BYTES = {0x0004: 20, 0x000B: 32, _SHA384: 48, 0x000D: 64, 0x0012: 32}
_EV_NO_ACTION = 3
_SIGNATURE = b"Spec ID Event03\0"
_PADDING = (b"\xff" * 8, bytes(8))
"""How the rest of the table begins behind the last event."""


def replay(log: bytes) -> list[bytes]:
    """RTMR0 to RTMR3, 48 bytes each, after the log's events. Raises AttestationError: event_log, too_large."""
    if len(log) > MOST_EVENT_LOG_BYTES:
        raise AttestationError("too_large", f"an event log of {len(log)} bytes")
    registers = [bytes(48)] * 4
    try:
        offset = _after_header(log)
        while offset < len(log):
            if any(pad.startswith(log[offset : offset + 8]) for pad in _PADDING):
                _check_padding(log[offset:])
                break
            register, kind = struct.unpack_from("<II", log, offset)
            digest, offset = _event(log, offset)
            if kind == _EV_NO_ACTION:
                continue
            # The log's register 0 is MRTD, which the TDX module measures without a log.
            if not 1 <= register <= 4:
                raise AttestationError("event_log", f"an event for register {register}")
            registers[register - 1] = hashlib.sha384(registers[register - 1] + digest).digest()
    except struct.error:
        raise AttestationError("event_log", "the log is truncated") from None
    return registers


def _after_header(log: bytes) -> int:
    """The offset behind the first entry, which names the log's format."""
    *_, size = struct.unpack_from("<II20sI", log)
    if log[32 : 32 + len(_SIGNATURE)] != _SIGNATURE or 32 + size > len(log):
        raise AttestationError("event_log", "not a crypto agile log")
    return 32 + int(size)


def _event(log: bytes, offset: int) -> tuple[bytes, int]:
    """(SHA-384 digest, offset behind the event)."""
    (count,) = struct.unpack_from("<I", log, offset + 8)
    offset += 12
    digest = b""
    for _ in range(min(count, len(_DIGEST_BYTES) + 1)):
        (algorithm,) = struct.unpack_from("<H", log, offset)
        size = _DIGEST_BYTES.get(algorithm)
        if size is None:
            raise AttestationError("event_log", f"a digest of unknown algorithm {algorithm:#x}")
        if algorithm == _SHA384:
            digest = log[offset + 2 : offset + 2 + size]
        offset += 2 + size
    (size,) = struct.unpack_from("<I", log, offset)
    offset += 4 + size
    if len(digest) != 48 or offset > len(log):
        raise AttestationError("event_log", "an event without SHA-384, or cut off")
    return digest, offset


def _check_padding(rest: bytes) -> None:
    if rest.strip(b"\xff") and rest.strip(b"\0"):
        raise AttestationError("event_log", "bytes behind the last event")
