"""Bytes of no form at all: each ends in an AttestationError, never in another exception."""

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.attestation.soft import DEFAULT_EVENTS, SoftTee, event_log, replay
from redoubt_verify import AttestationError, eventlog, tdx
from redoubt_verify.exchange import Exchange
from redoubt_verify.verify import decode_answer, decode_statement
from tests.sizes import examples

QUOTE = SoftTee.make().quote(bytes(64))
LOG = event_log(DEFAULT_EVENTS)


def test_the_log_replays() -> None:
    assert eventlog.replay(LOG) == replay(DEFAULT_EVENTS)
    for padding in (b"\xff" * 100, bytes(100), b"\xff" * 3, bytes(3)):
        assert eventlog.replay(LOG + padding) == replay(DEFAULT_EVENTS)


def _outcome(call: Callable[[], object]) -> str:
    """ "accepted", or the reason of the refusal."""
    try:
        call()
    except AttestationError as error:
        return error.reason
    return "accepted"


@pytest.mark.parametrize("length", [0, 1, 47, 48, 631, 635, 700, 1200, -1])  # quotes differ in length, names must not
def test_a_shorter_quote_is_malformed(length: int) -> None:
    with pytest.raises(AttestationError, match="malformed"):
        tdx.parse(QUOTE[:length])


@given(st.integers(0, len(QUOTE) - 1), st.binary(min_size=1, max_size=8))
def test_a_changed_quote_parses_or_is_malformed(offset: int, patch: bytes) -> None:
    changed = QUOTE[:offset] + patch + QUOTE[offset + len(patch) :]
    assert _outcome(lambda: tdx.parse(changed)) in ("malformed", "accepted")


@given(st.integers(0, len(LOG) - 1), st.binary(max_size=12))
def test_a_changed_log_replays_or_is_refused(offset: int, patch: bytes) -> None:
    changed = LOG[:offset] + patch + LOG[offset + len(patch) :]
    assert _outcome(lambda: eventlog.replay(changed)) in ("event_log", "accepted")


_JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5)


@given(st.dictionaries(st.sampled_from(["statement", "quote", "event_log", "collateral"]), _JSON))
def test_an_answer_of_any_values(answer: dict[str, object]) -> None:
    outcome = _outcome(lambda: decode_answer(json.dumps(answer).encode()))
    assert outcome in ("malformed", "collateral_missing", "accepted")


@given(st.dictionaries(st.sampled_from(["v", "nonce", "models", "image", "hpke"]), _JSON) | _JSON)
def test_a_statement_of_any_values(values: object) -> None:
    with pytest.raises(AttestationError, match="malformed"):
        decode_statement(json.dumps(values).encode())


@settings(max_examples=examples(50))
@given(st.binary(max_size=300))
def test_an_exchange_with_any_bytes(data: bytes) -> None:
    exchange = Exchange("service.example")
    assert exchange.request().startswith(b"GET /v1/attestation?nonce=")
    outcomes = {_outcome(lambda: exchange.receive(data)), _outcome(lambda: exchange.receive(b""))}
    assert outcomes <= {"malformed", "unreachable", "origin", "too_large", "accepted"}


def test_base64_of_another_alphabet() -> None:
    for text in ("AAA_", "AAAA\n", "AAA", " AAAA"):
        with pytest.raises(AttestationError, match="malformed"):
            decode_answer(json.dumps({"statement": text, "quote": base64.b64encode(QUOTE).decode()}).encode())
