"""Removes padding from quotes and event logs, because clients demand exact sizes.

A TDX guest's quote comes in a buffer that ends in zeros, and its event log as the whole ACPI table, of which a mebibyte
may be unused. Unparsable input stays as it is, and clients report what is wrong with it. Sources: Intel TDX DCAP Quote
Generation Library, Quote Format; TCG PC Client Platform Firmware Profile, "crypto agile" log.
"""

import struct

_HEADER_BYTES = 48
_TDX_10_BODY_BYTES = 584
_FIRST_ENTRY_BYTES = 32
_ALGORITHMS_AT = _FIRST_ENTRY_BYTES + 24
_UNUSED = (bytes(8), b"\xff" * 8)


def exact_quote(buffer: bytes) -> bytes:
    """Returns the quote (version 4 or 5) at the start of a zero-padded buffer."""
    try:
        (version,) = struct.unpack_from("<H", buffer)
        if version not in (4, 5):
            return buffer
        body_bytes = _TDX_10_BODY_BYTES if version == 4 else 6 + struct.unpack_from("<I", buffer, _HEADER_BYTES + 2)[0]
        (signature_bytes,) = struct.unpack_from("<I", buffer, _HEADER_BYTES + body_bytes)
    except struct.error:
        return buffer
    end = _HEADER_BYTES + body_bytes + 4 + signature_bytes
    return buffer if any(buffer[end:]) else buffer[:end]


def used_event_log(table: bytes) -> bytes:
    """Returns the entries of a CCEL table, without the padding of zeros or ones."""
    try:
        (first_bytes,) = struct.unpack_from("<I", table, _FIRST_ENTRY_BYTES - 4)
        (count,) = struct.unpack_from("<I", table, _ALGORITHMS_AT)
        digest_bytes = dict(struct.unpack_from("<HH", table, _ALGORITHMS_AT + 4 + 4 * n) for n in range(min(count, 16)))
        offset = _FIRST_ENTRY_BYTES + first_bytes
        while offset < len(table) and table[offset : offset + 8] not in _UNUSED:
            (digests,) = struct.unpack_from("<I", table, offset + 8)
            offset += 12
            for _ in range(min(digests, 16)):
                offset += 2 + digest_bytes[struct.unpack_from("<H", table, offset)[0]]
            offset += 4 + struct.unpack_from("<I", table, offset)[0]
    except (struct.error, KeyError):
        return table
    return table[:offset]
