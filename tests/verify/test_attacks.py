"""Attacks on a client by the server, or by who stands between: each is refused for its reason, and no prompt leaves."""

import base64
import dataclasses
import gzip
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

import redoubt_verify
from app.attestation.soft import Event, SoftTee, encode_quote, event_log
from app.attestation.soft_pki import CollateralKnobs, SoftPki
from redoubt_verify import connections, transport
from redoubt_verify.policy import parse
from tests.verify.fake_service import CANARY, KEY, FakeService, TlsKey, http_response, policy_text

Attack = Callable[[FakeService], None]


def _attempt(service: FakeService, reason: str, timeout_s: float = 60.0, **policy: str) -> None:
    """A client with a prompt in its hand is refused."""
    checked = parse(policy_text(service.tee, **policy), allow_insecure=True)
    verifier = connections.Verifier(service.url, checked, timeout_s=timeout_s)
    with transport.client_of(verifier) as client, pytest.raises(redoubt_verify.AttestationError) as refused:
        client.post(
            f"{service.url}/v1/chat/completions",
            headers={"Authorization": f"Bearer {KEY}", "X-Canary": CANARY},
            json={"messages": [{"role": "user", "content": CANARY}]},
        )
    assert refused.value.reason == reason, str(refused.value)
    assert str(refused.value).isprintable()
    service.assert_no_prompt()


def _statement(**changes: Any) -> Attack:
    """The trust domain itself states something else, and quotes it."""

    def attack(service: FakeService) -> None:
        service.change_statement = lambda values: values.update(changes)

    return attack


def _answer(change: Callable[[dict[str, Any]], None]) -> Attack:
    """Somebody changes the answer on its way."""

    def attack(service: FakeService) -> None:
        service.change_answer = change

    return attack


def _bytes(name: str, change: Callable[[bytes], bytes]) -> Attack:
    """Somebody changes the bytes of a part of the answer."""

    def replace(answer: dict[str, Any]) -> None:
        answer[name] = base64.b64encode(change(base64.b64decode(answer[name]))).decode()

    return _answer(replace)


def _report(version: int = 4, tee_type: int = 0x81, **changes: bytes) -> Attack:
    """The machine measured something else; the policy is that of the honest machine."""

    def quote(tee: SoftTee, data: bytes) -> bytes:
        report = dataclasses.replace(tee.measured(), report_data=data)
        return encode_quote(tee.pki, dataclasses.replace(report, **changes), version, tee_type)

    def attack(service: FakeService) -> None:
        service.quote_of = quote

    return attack


def _collateral(**changes: Any) -> Attack:
    def attack(service: FakeService) -> None:
        knobs = CollateralKnobs(**{"issued": service.tee.issued, **changes})
        service.change_answer = lambda answer: answer.update(collateral=service.tee.pki.collateral(knobs))

    return attack


def _issued(**age: float) -> Attack:
    """Collateral from another day; age may be negative."""

    def attack(service: FakeService) -> None:
        _collateral(issued=service.tee.issued - timedelta(**age))(service)

    return attack


def _collateral_part(name: str, change: Callable[[str], Any]) -> Attack:
    return _answer(lambda answer: answer["collateral"].update({name: change(answer["collateral"][name])}))


def _list_from_the_future(service: FakeService) -> None:
    later = service.tee.pki.collateral(CollateralKnobs(service.tee.issued + timedelta(days=2)))
    service.change_answer = lambda answer: answer["collateral"].update(pck_crl=later["pck_crl"])


def _old_list(service: FakeService) -> None:
    """Valid, and from before the platform was revoked; the rest is new."""
    older = service.tee.pki.collateral(CollateralKnobs(service.tee.issued - timedelta(days=20)))
    service.change_answer = lambda answer: answer["collateral"].update(pck_crl=older["pck_crl"])


def _events(change: Callable[[list[Event]], list[Event]]) -> Attack:
    def attack(service: FakeService) -> None:
        log = base64.b64encode(event_log(change(list(service.tee.events)))).decode()
        service.change_answer = lambda answer: answer.update(event_log=log)

    return attack


def _respond(parts: Callable[[bytes], list[bytes]]) -> Attack:
    def attack(service: FakeService) -> None:
        service.respond = parts

    return attack


def _signed_by_a_platform(chain_of: Callable[[SoftPki], str]) -> Attack:
    """Who has one machine's key makes collateral by which that machine is up to date: Intel's root stands behind it."""

    def attack(service: FakeService) -> None:
        pki = service.tee.pki
        forger = dataclasses.replace(pki, tcb_signing=pki.pck, tcb_signing_key=pki.pck_key)
        chains = dict.fromkeys(("tcb_info_issuer_chain", "qe_identity_issuer_chain"), chain_of(pki))
        forged = forger.collateral(CollateralKnobs(service.tee.issued)) | chains
        service.change_answer = lambda answer: answer.update(collateral=forged)

    return attack


def _platform_chain(pki: SoftPki) -> str:
    return pki.pck_chain_pem.decode()


def _hidden_platform_chain(pki: SoftPki) -> str:
    """Readers of PEM differ in which blocks they take for certificates."""
    genuine = pki.collateral(CollateralKnobs(datetime.now(UTC)))["tcb_info_issuer_chain"]
    return _platform_chain(pki).replace("CERTIFICATE", "X") + genuine


def _of_a_version_to_come(chain: str) -> str:
    """The first certificate; X.509 has versions 1 to 3."""
    certificate = x509.load_pem_x509_certificate(chain.encode()).public_bytes(Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x03", 1))


def _wrong_root(service: FakeService) -> None:
    other = SoftTee.make()
    service.quote_of = lambda tee, data: dataclasses.replace(other, report=tee.report).quote(data)
    service.change_answer = lambda answer: answer.update(collateral=other.collateral())


def _other_platform(service: FakeService) -> None:
    now = service.tee.issued
    pki = service.tee.pki.of_other_platform(now, b"\x99" * 16)
    service.quote_of = lambda tee, data: dataclasses.replace(tee, pki=pki).quote(data)


def _other_pck_chain(service: FakeService) -> None:
    """The quote carries another genuine platform's chain than that of the key that signed it."""
    pki = dataclasses.replace(service.tee.pki, pck=service.tee.pki.of_other_platform(service.tee.issued, b"7" * 16).pck)
    service.quote_of = lambda tee, data: dataclasses.replace(tee, pki=pki).quote(data)


def _duplicate_in_statement(service: FakeService) -> None:
    def statement(values: dict[str, Any]) -> bytes:
        return json.dumps(values).replace("{", '{"nonce": "' + "0" * 64 + '", ', 1).encode()

    service.statement_of = statement


def _reencoded(statement: bytes) -> bytes:
    return json.dumps(json.loads(statement), separators=(",", ":")).encode()


def _swapped_key(statement: bytes) -> bytes:
    return json.dumps(json.loads(statement) | {"tls_spki_sha256": "ee" * 32}).encode()


def _flip(offset: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def _gzipped(answer: bytes) -> list[bytes]:
    return [http_response(gzip.compress(answer + b" " * (64 << 20)), Content_Encoding="gzip")]


def _endless(answer: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *[b"10000\r\n" + b" " * 65536 + b"\r\n"] * 40]


def _redirect(status: str, to: str = "https://127.0.0.1:1/v1/attestation") -> Attack:
    return _respond(lambda answer: [http_response(b"", status, Location=to)])


def _v3(quote: bytes) -> bytes:
    return struct.pack("<H", 3) + quote[2:]


def _outer_duplicate(answer: bytes) -> list[bytes]:
    return [http_response(answer.replace(b"{", b'{"quote": "AAAA", ', 1))]


MODEL_B = {"name": "smollm2", "sha256": "0b" * 32}
ATTACKS: dict[str, tuple[str, Attack]] = {
    # The nonce.
    "wrong nonce": ("nonce", _statement(nonce="ab" * 32)),
    "short nonce": ("malformed", _statement(nonce="ab" * 16)),
    "upper-case nonce": ("malformed", _statement(nonce="AB" * 32)),
    # The statement and its binding.
    "statement re-encoded": ("report_data", _bytes("statement", _reencoded)),
    "duplicate keys that the TD quotes": ("malformed", _duplicate_in_statement),
    "duplicate keys in the answer": ("malformed", _respond(_outer_duplicate)),
    "key swapped in the statement": ("report_data", _bytes("statement", _swapped_key)),
    "unknown field in the statement": ("malformed", _statement(also=1)),
    "statement of version 2": ("malformed", _statement(v=2)),
    "statement of version true": ("malformed", _statement(v=True)),
    "statement with HPKE": ("malformed", _statement(hpke="key")),
    "another TD's key": ("key_mismatch", _statement(tls_spki_sha256="ee" * 32)),
    "report data of nothing": ("report_data", _report(report_data=bytes(64))),
    # The quote.
    "bit flip in the body": ("quote_signature", _bytes("quote", _flip(200))),
    "bit flip in the signature": ("quote_signature", _bytes("quote", _flip(640))),
    "trailing byte": ("malformed", _bytes("quote", lambda quote: quote + b"\0")),
    "truncated quote": ("malformed", _bytes("quote", lambda quote: quote[:-1])),
    "half a quote": ("malformed", _bytes("quote", lambda quote: quote[:100])),
    "no quote": ("malformed", _bytes("quote", lambda quote: b"")),
    "oversized quote": ("too_large", _bytes("quote", lambda quote: quote + bytes(16 << 10))),
    "quote of version 3": ("malformed", _bytes("quote", _v3)),
    "SGX quote": ("malformed", _report(tee_type=0)),
    "quote not base64": ("malformed", _answer(lambda answer: answer.update(quote="?" * 40))),
    "wrong root": ("quote_signature", _wrong_root),
    "another platform's chain": ("quote_signature", _other_pck_chain),
    "platform not on the list": ("tcb", _other_platform),
    # The trust domain.
    "debug TD": ("debug_td", _report(td_attributes=bytes.fromhex("0100001000000000"))),
    "debug TD, v5": ("debug_td", _report(5, td_attributes=bytes.fromhex("0100001000000000"))),
    "other attributes": ("measurement", _report(td_attributes=bytes.fromhex("0000005000000000"))),
    "no SEPT_VE_DISABLE": ("measurement", _report(td_attributes=bytes(8))),
    "service TD": ("measurement", _report(5, mr_service_td=b"\x01" * 48)),
    "MRTD": ("measurement", _report(mr_td=b"\x02" * 48)),
    "RTMR3": ("measurement", _report(rtmr3=b"\x03" * 48)),
    "RTMR1 and RTMR2 swapped": ("measurement", lambda service: _report(rtmr1=service.tee.measured().rtmr2)(service)),
    "MR_SEAM": ("measurement", _report(mr_seam=b"\x04" * 48)),
    "XFAM": ("measurement", _report(xfam=bytes.fromhex("e700060000000000"))),
    "altered initdata": ("config_digest", _report(mr_config_id=b"\x05" * 48)),
    # The event log.
    "log truncated": ("event_log", _bytes("event_log", lambda log: log[:-5])),
    "log shorter by an event": ("event_log", _events(lambda events: events[:-1])),
    "log reordered": ("event_log", _events(lambda events: [events[1], events[0], *events[2:]])),
    "log extended": ("event_log", _events(lambda events: [*events, Event(3, b"rogue")])),
    "log absent": ("event_log", _answer(lambda answer: answer.update(event_log=""))),
    "log null": ("event_log", _answer(lambda answer: answer.pop("event_log") and None)),
    "log of another form": ("event_log", _bytes("event_log", lambda log: b"{}" * 40)),
    "log with bytes behind": ("event_log", _bytes("event_log", lambda log: log + b"\xff" * 12 + b"x")),
    "log too large": ("too_large", _bytes("event_log", lambda log: log + b"\xff" * (256 << 10))),
    # The collateral.
    "collateral missing": ("collateral_missing", _answer(lambda answer: answer.update(collateral=None))),
    "collateral without a part": ("collateral_missing", _collateral_part("pck_crl", lambda part: "")),
    "collateral of lone surrogates": ("malformed", _answer(lambda answer: answer.update(collateral="\ud800"))),
    "collateral of another type": ("malformed", _answer(lambda answer: answer.update(collateral=[1]))),
    "collateral part not text": ("malformed", _collateral_part("tcb_info", lambda part: {"a": 1})),
    "collateral part not hex": ("quote_signature", _collateral_part("pck_crl", lambda part: "zz")),
    "collateral re-signed": ("quote_signature", _collateral_part("tcb_info", lambda part: part.replace("18", "19"))),
    "collateral signed by a platform": ("quote_signature", _signed_by_a_platform(_platform_chain)),
    "collateral signed by a platform, hidden": ("quote_signature", _signed_by_a_platform(_hidden_platform_chain)),
    "collateral signed with a strange certificate": (
        "quote_signature", _collateral_part("tcb_info_issuer_chain", _of_a_version_to_come)),
    "collateral without signers": ("quote_signature", _collateral_part("tcb_info_issuer_chain", lambda part: "x")),
    "collateral expired": ("collateral_expired", _issued(days=40)),
    "collateral from the future": ("collateral_expired", _issued(days=-2)),
    "revocation list from the future": ("collateral_expired", _list_from_the_future),
    "revocation list older than allowed": ("collateral_expired", _old_list),
    "collateral older than allowed": ("collateral_expired", _issued(days=20)),
    "collateral of an older evaluation": ("tcb", _collateral(evaluation_number=17)),
    "collateral of another platform": ("tcb", _collateral(fmspc=b"\x01" * 6)),
    "revoked PCK": ("quote_signature", _collateral(revoked_pck=True)),
    "revoked authority": ("quote_signature", _collateral(revoked_pck_ca=True)),
    "revocation list of another issuer": ("quote_signature", lambda service: _answer(
        lambda answer: answer["collateral"].update(pck_crl=answer["collateral"]["root_ca_crl"]))(service)),
    "OutOfDate": ("tcb", _collateral(tcb_status="OutOfDate")),
    "Revoked": ("tcb", _collateral(tcb_status="Revoked")),
    "quoting enclave revoked": ("tcb", _collateral(qe_status="Revoked")),
    "quoting enclave needs configuration": ("tcb", _collateral(qe_status="ConfigurationNeeded")),
    "quoting enclave out of date": ("tcb", _collateral(qe_status="OutOfDateConfigurationNeeded")),
    "no level for this platform": ("tcb", _collateral(required_tee_svn=b"\xff" * 16)),
    "unknown advisory": ("tcb", _collateral(advisories=["INTEL-SA-00999"])),
    # What runs there.
    "another image": ("measurement", _statement(image="registry.example/redoubt@sha256:" + "00" * 32)),
    "no image": ("measurement", _statement(image=None)),
    "another model": ("model", _statement(models=[MODEL_B])),
    "a model more": ("model", _statement(models=[{"name": "smollm2", "sha256": "e1" * 32},
                                                 {"name": "other", "sha256": "e1" * 32}])),
    "a model twice": ("malformed", _statement(models=[{"name": "smollm2", "sha256": "e1" * 32}] * 2)),
    "no model": ("model", _statement(models=[])),
    "another configuration": ("config_digest", _statement(config_sha256="00" * 32)),
    # The answer.
    "not JSON": ("malformed", _respond(lambda answer: [http_response(b"<html>")])),
    "deep JSON": ("malformed", _respond(lambda answer: [http_response(b"[" * 200_000)])),
    "a long number": ("malformed", _respond(lambda answer: [http_response(b'{"a":' + b"1" * 900000 + b"}")])),
    "terminal escapes": ("measurement", _statement(image="\x1b[2J\ud800")),
    "a list": ("malformed", _respond(lambda answer: [http_response(b"[]")])),
    "oversized answer": ("too_large", _respond(lambda answer: [http_response(answer + b" " * (2 << 20))])),
    "endless answer": ("too_large", _respond(_endless)),
    "gzip bomb": ("malformed", _respond(_gzipped)),
    "not HTTP": ("malformed", _respond(lambda answer: [b"SSH-2.0-x\r\n\r\n"])),
    "two answers": ("malformed", _respond(lambda answer: [http_response(answer) + http_response(b"{}")])),
    "closing answer": ("malformed", _respond(lambda answer: [http_response(answer, Connection="close")])),
    "endless header": ("malformed", _respond(lambda answer: [b"HTTP/1.1 200 OK\r\nX: " + b"x" * (128 << 10)])),
    "503": ("unreachable", _respond(lambda answer: [http_response(b"{}", "503 Service Unavailable")])),
    "429": ("unreachable", _respond(lambda answer: [http_response(b"{}", "429 Too Many Requests")])),
    "301": ("origin", _redirect("301 Moved Permanently")),
    "302": ("origin", _redirect("302 Found")),
    "307": ("origin", _redirect("307 Temporary Redirect")),
    "308 to itself": ("origin", _redirect("308 Permanent Redirect", "/v1/attestation")),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_before_the_prompt(service: FakeService, name: str) -> None:
    reason, attack = ATTACKS[name]
    attack(service)
    _attempt(service, reason)
    assert service.targets == ["/v1/attestation"]


def test_a_replayed_answer_has_an_old_nonce(service: FakeService) -> None:
    recorded: list[bytes] = []

    def replay(answer: bytes) -> list[bytes]:
        recorded.append(answer)
        return [http_response(recorded[0])]

    service.respond = replay
    verifier = connections.Verifier(service.url, parse(policy_text(service.tee), allow_insecure=True))
    transport.verify_once(verifier)
    _attempt(service, "nonce")


def test_every_connection_asks_with_a_nonce_of_its_own(service: FakeService) -> None:
    for _ in range(3):
        verifier = connections.Verifier(service.url, parse(policy_text(service.tee), allow_insecure=True))
        transport.verify_once(verifier)
    nonces = {target for target, _ in service.requests}
    assert len(nonces) == 3
    assert all(len(nonce) == len("/v1/attestation?nonce=") + 64 for nonce in nonces)


def test_a_relay_of_an_honest_machine_has_another_key(service: FakeService, tmp_path: Path) -> None:
    """The attacker ends TLS and asks the honest trust domain with the client's own nonce."""
    honest_key = TlsKey.make(tmp_path)
    honest = FakeService(service.tee, [honest_key])
    service.respond = lambda answer: [
        http_response(
            json.dumps(
                honest.answer(json.loads(base64.b64decode(json.loads(answer)["statement"]))["nonce"], "aa" * 32)
            ).encode()
        )
    ]
    _attempt(service, "key_mismatch")
    honest.close()


def test_an_honest_machine_of_another_tenant_has_another_configuration(service: FakeService) -> None:
    report = dataclasses.replace(service.tee.report, mr_config_id=b"\x66" * 48)
    other = dataclasses.replace(service.tee, report=report)
    service.quote_of = lambda tee, data: other.quote(data)
    _attempt(service, "config_digest")


def test_a_wrong_clock_refuses(service: FakeService) -> None:
    for days in (-30, 60):
        moment = datetime.fromtimestamp(service.tee.issued.timestamp() + days * 86400, UTC)
        verifier = connections.Verifier(
            service.url, parse(policy_text(service.tee), allow_insecure=True), clock=moment.timestamp
        )
        with transport.client_of(verifier) as client, pytest.raises(redoubt_verify.AttestationError) as refused:
            client.post(f"{service.url}/v1/chat/completions", content=CANARY)
        assert refused.value.reason == "collateral_expired"
    service.assert_no_prompt()


def test_an_expired_policy_connects_to_nothing(service: FakeService) -> None:
    with pytest.raises(redoubt_verify.AttestationError) as refused:
        _attempt(service, "policy_expired", expires="2020-01-01")
    assert refused.value.reason == "policy_expired"
    assert not service.raw


def test_without_intels_root_a_soft_quote_is_worth_nothing(service: FakeService) -> None:
    _attempt(service, "quote_signature", drop="insecure_root")


def test_an_old_tls_is_refused(service: FakeService) -> None:
    service.tls_version = ssl.TLSVersion.TLSv1_2
    _attempt(service, "unreachable")


def test_a_certificate_that_can_not_be_read_is_refused(service: FakeService) -> None:
    path = service.keys[0].path
    certificate, label, key = path.read_text().partition("-----BEGIN PRIVATE")
    path.write_text(_of_a_version_to_come(certificate) + label + key)
    _attempt(service, "malformed")
    assert not service.requests


def test_a_slow_answer_ends_in_time(service: FakeService) -> None:
    """A byte now and then does not keep the client waiting."""
    service.step = threading.Event()
    service.respond = lambda answer: [b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"]
    _attempt(service, "unreachable", timeout_s=0.3)


def test_a_server_that_never_speaks_tls(policy: redoubt_verify.Policy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        verifier = connections.Verifier(url, policy, timeout_s=0.2)
        with pytest.raises(redoubt_verify.AttestationError) as refused:
            transport.verify_once(verifier)
    assert refused.value.reason == "unreachable"
    with pytest.raises(redoubt_verify.AttestationError) as refused:
        transport.verify_once(connections.Verifier(url, policy))
    assert refused.value.reason == "unreachable"
