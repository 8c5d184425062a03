"""What the verifier checks itself, also where dcap-qvl would refuse first: another version of it may not."""

import dataclasses
import json

import dcap_qvl
import pytest

from app.attestation.soft import SoftTee, encode_quote
from app.attestation.soft_pki import CollateralKnobs
from redoubt_verify import AttestationError, Policy
from redoubt_verify.policy import parse
from redoubt_verify.verify import decode_answer, judge
from tests.verify.fake_service import FakeService, policy_text


class Lenient:
    """What dcap-qvl says of a quote that it finds nothing wrong with."""

    status = "UpToDate"
    advisory_ids: tuple[str, ...] = ()
    ppid = bytes(range(16))

    @staticmethod
    def to_json() -> str:
        return json.dumps({"qe_status": {"status": "UpToDate"}})


DEBUG = {"td_attributes": bytes.fromhex("0100001000000000")}


@pytest.mark.parametrize(
    ("version", "reason", "changes"),
    [
        (4, "debug_td", DEBUG),
        (5, "debug_td", DEBUG),
        (4, "debug_td", {"td_attributes": bytes.fromhex("8000001000000000")}),
        (4, "measurement", {"td_attributes": bytes(8)}),
        (5, "measurement", {"mr_service_td": b"\x01" * 48}),
        (4, None, {}),
        (5, None, {}),
    ],
)
def test_attributes(
    service: FakeService,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    reason: str | None,
    changes: dict[str, bytes],
) -> None:
    def quote(tee: SoftTee, data: bytes) -> bytes:
        return encode_quote(tee.pki, dataclasses.replace(tee.measured(), report_data=data, **changes), version)

    service.quote_of = quote
    monkeypatch.setattr(dcap_qvl, "verify_with_root_ca", lambda *_: Lenient)
    evidence = decode_answer(json.dumps(service.answer("ab" * 32, "cd" * 32)).encode())
    now = service.tee.issued.timestamp() + 60
    if reason is None:
        assert judge(evidence, policy, nonce="ab" * 32, spki_sha256="cd" * 32, now=now).quote_version == version
        return
    with pytest.raises(AttestationError) as refused:
        judge(evidence, policy, nonce="ab" * 32, spki_sha256="cd" * 32, now=now)
    assert refused.value.reason == reason


@pytest.mark.parametrize("enclave", ["UpToDate", "ConfigurationNeeded"])
def test_statuses_that_the_policy_allows(service: FakeService, enclave: str) -> None:
    knobs = CollateralKnobs(service.tee.issued, tcb_status="SWHardeningNeeded", qe_status=enclave)
    service.change_answer = lambda answer: answer.update(collateral=service.tee.pki.collateral(knobs))
    statuses = json.dumps([name for name in ("SWHardeningNeeded", enclave) if name != "UpToDate"])
    policy = parse(policy_text(service.tee, tcb_statuses=statuses), allow_insecure=True)
    evidence = decode_answer(json.dumps(service.answer("ab" * 32, "cd" * 32)).encode())
    now = service.tee.issued.timestamp() + 60
    assert judge(evidence, policy, nonce=None, spki_sha256=None, now=now).tcb_status == "SWHardeningNeeded"


def test_the_chain_in_the_collateral_is_not_used(service: FakeService, policy: Policy) -> None:
    """dcap-qvl prefers it to the quote's own."""
    answer = service.answer("ab" * 32, "cd" * 32)
    answer["collateral"]["pck_certificate_chain"] = "-----BEGIN CERTIFICATE-----"
    evidence = decode_answer(json.dumps(answer).encode())
    now = service.tee.issued.timestamp() + 60
    verdict = judge(evidence, policy, nonce="ab" * 32, spki_sha256="cd" * 32, now=now)
    assert verdict.platform == service.tee.pki.ppid.hex()


def test_no_byte_before_the_certificates_can_be_changed(service: FakeService, policy: Policy) -> None:
    evidence = decode_answer(json.dumps(service.answer("ab" * 32, "cd" * 32)).encode())
    now = service.tee.issued.timestamp() + 60
    for offset in range(evidence.quote.index(b"-----BEGIN")):
        changed = bytearray(evidence.quote)
        changed[offset] ^= 0x10
        with pytest.raises(AttestationError) as refused:
            judge(dataclasses.replace(evidence, quote=bytes(changed)), policy, nonce=None, spki_sha256=None, now=now)
        assert refused.value.reason in ("quote_signature", "malformed"), offset
