"""Quotes of real processors, from ../shared/data/tdx: skipped where that is absent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from redoubt_verify import AttestationError, tdx
from redoubt_verify.policy_build import open_policy
from redoubt_verify.verify import Evidence, decode_collateral, judge

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "tdx"
VALID_AT = 1750414563


@pytest.fixture
def evidence() -> Evidence:
    """A version 4 quote with its collateral. Its statement is unknown: a verdict fails at the report data at best."""
    quote = _data("tdx_quote")
    length = 48 + 584 + 4 + int.from_bytes(quote[632:636], "little")
    collateral = decode_collateral(_data("tdx_quote_collateral.json").decode())
    return Evidence(b"{}", quote[:length], b"", collateral)


def _data(name: str) -> bytes:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is missing: it holds quotes of real processors")
    return path.read_bytes()


def _reason(evidence: Evidence, now: float) -> str:
    with pytest.raises(AttestationError) as refused:
        judge(evidence, open_policy(None), nonce=None, spki_sha256=None, now=now)
    return refused.value.reason


def test_it_holds_at_its_date_and_was_made_for_another_statement(evidence: Evidence) -> None:
    """Intel's root, chain, collateral and measurements pass; report_data is the first check that can't."""
    assert _reason(evidence, VALID_AT) == "report_data"


def test_it_is_expired_today(evidence: Evidence) -> None:
    assert _reason(evidence, 1_780_000_000) == "collateral_expired"


def test_its_collateral_was_in_the_future_once(evidence: Evidence) -> None:
    assert _reason(evidence, 1_740_000_000) == "collateral_expired"


def test_bits_cannot_be_changed(evidence: Evidence) -> None:
    for offset in (60, 200, 500, 640, 700):
        flipped = bytearray(evidence.quote)
        flipped[offset] ^= 1
        assert _reason(replace(evidence, quote=bytes(flipped)), VALID_AT) == "quote_signature"


def test_the_file_has_bytes_behind_the_quote(evidence: Evidence) -> None:
    """dcap-qvl does not mind them; the protocol does."""
    assert _reason(replace(evidence, quote=_data("tdx_quote")), VALID_AT) == "malformed"


def test_a_version_5_quote_parses() -> None:
    report = tdx.parse(_data("quote_v5_sample.dat"))
    assert report.version == 5
    assert len(report.fields["mr_service_td"]) == 48
    assert not report.debug


def test_the_collateral_is_whole() -> None:
    parts = json.loads(_data("tdx_quote_collateral.json"))
    parts["pck_certificate_chain"] = "another"
    kept = decode_collateral(parts)
    assert kept is not None
    assert len(kept) == 9
    assert "pck_certificate_chain" not in kept
