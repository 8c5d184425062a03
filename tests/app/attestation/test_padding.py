"""What machines fill their buffers up with is cut off, and nothing else."""

import pytest

from app.attestation.padding import exact_quote, used_event_log
from app.attestation.soft import DEFAULT_EVENTS, Event, SoftTee, event_log
from redoubt_verify import eventlog, tdx

ENDS_IN_ZEROS = event_log([*DEFAULT_EVENTS, Event(2, b"a variable" + bytes(300))])
ENDS_IN_ONES = event_log([*DEFAULT_EVENTS, Event(2, b"a variable" + b"\xff" * 300)])


@pytest.mark.parametrize("version", [4, 5])
def test_a_quote_ends_where_it_says(version: int) -> None:
    tee = SoftTee.make()
    tee.version = version
    quote = tee.quote(bytes(64))
    assert exact_quote(quote) == quote
    assert exact_quote(quote + bytes(70)) == quote
    tdx.parse(exact_quote(quote + bytes(70)))
    # These are not padding. Clients refuse them.
    assert exact_quote(quote + bytes(70) + b"\1") == quote + bytes(70) + b"\1"
    assert exact_quote(quote[:-1]) == quote[:-1]


@pytest.mark.parametrize("log", [ENDS_IN_ZEROS, ENDS_IN_ONES], ids=["zeros", "ones"])
@pytest.mark.parametrize("padding", [b"", bytes(1 << 20), b"\xff" * (1 << 16)], ids=["none", "zeros", "ones"])
def test_an_event_log_ends_behind_its_last_event(log: bytes, padding: bytes) -> None:
    assert used_event_log(log + padding) == log
    assert eventlog.replay(used_event_log(log + padding)) == eventlog.replay(log)


UNREADABLE = {"empty": b"", "short": b"\0", "ones": b"\xff" * 700, "cut off": ENDS_IN_ZEROS[:-1]}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_what_can_not_be_read_stays(data: bytes) -> None:
    assert exact_quote(data) == data
    assert used_event_log(data) == data
