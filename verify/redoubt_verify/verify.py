"""The verdict: evidence, in a fixed order of checks, against a policy. The first failure ends it.

The order: sizes and form; signatures and collateral (dcap-qvl, then what it leaves to its callers); debug and other
attributes; measurements; event log; report data; nonce; TLS key; image, models and configuration. Opens no connection.
"""

import base64
import binascii
import datetime
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import dcap_qvl
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from redoubt_verify import eventlog, tdx
from redoubt_verify.errors import AttestationError
from redoubt_verify.policy import MEASUREMENTS, Policy

MOST_ANSWER_BYTES = 1 << 20
REPORT_DATA_PREFIX = b"redoubt/attestation/v1\0"
_STATEMENT_FIELDS = {
    "v",
    "nonce",
    "tls_spki_sha256",
    "hpke",
    "image",
    "config_sha256",
    "models",
    "cluster_ca_spki_sha256",
}
_COLLATERAL_FIELDS = (
    "pck_crl_issuer_chain",
    "root_ca_crl",
    "pck_crl",
    "tcb_info_issuer_chain",
    "tcb_info",
    "tcb_info_signature",
    "qe_identity_issuer_chain",
    "qe_identity",
    "qe_identity_signature",
)
_SIGNER_CHAINS = ("tcb_info_issuer_chain", "qe_identity_issuer_chain")
# What dcap-qvl 0.7.0 says, in lower case, and the reason it stands for; anything else is quote_signature.
_DCAP_MESSAGES = (
    ("failed to decode quote", "malformed"),
    ("expired", "collateral_expired"),
    ("notvalidyet", "collateral_expired"),
    ("in the future", "collateral_expired"),
    ("debug mode", "debug_td"),
    ("td attributes", "measurement"),
    ("sept_ve_disable", "measurement"),
    ("mr service td", "measurement"),
    ("tdx module", "measurement"),
    ("tcb status is invalid", "tcb"),
    ("no matching tcb level", "tcb"),
    ("isvsvn", "tcb"),
    ("fmspc", "tcb"),
)
_HEX_256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A server's answer, decoded."""

    statement: bytes
    quote: bytes
    event_log: bytes
    """Empty: the server has none."""
    collateral: Mapping[str, str] | None
    """The nine parts of Intel's collateral; None: the server has none."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The trust domain's statement about itself, bound to its quote."""

    nonce: str
    tls_spki_sha256: str
    image: str | None
    config_sha256: str
    models: tuple[tuple[str, str], ...]
    """(name, SHA-256 in hex)."""
    cluster_ca_spki_sha256: str | None


@dataclass(frozen=True, slots=True)
class CheckedQuote:
    """The contents of a quote whose signatures, platform and measurements were checked."""

    report: tdx.Report
    tcb_status: str
    advisories: tuple[str, ...]
    tcb_eval_data_number: int
    platform: bytes
    """The platform's PPID."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verified properties of a service; a refused one has none. Digests are in hex."""

    insecure: bool
    """A test root signed the quote: no processor stands behind it."""
    unpinned: tuple[str, ...]
    """What the policy leaves open, and what could not be checked offline."""
    quote_version: int
    measurements: dict[str, str]
    tcb_status: str
    advisories: tuple[str, ...]
    tcb_eval_data_number: int
    platform: str
    """The platform's PPID."""
    tls_spki_sha256: str
    image: str | None
    config_sha256: str
    models: tuple[tuple[str, str], ...]
    cluster_ca_spki_sha256: str | None
    verified_at: str

    def to_json(self) -> str:
        """Returns a JSON object."""
        return json.dumps(asdict(self), indent=2)


def decode_answer(body: bytes, collateral: Mapping[str, str] | None = None) -> Evidence:
    """The evidence in the body of an answer. collateral: instead of the answer's. Raises AttestationError."""
    if len(body) > MOST_ANSWER_BYTES:
        raise AttestationError("too_large", f"an answer of {len(body)} bytes")
    answer = strict_json(body, "the answer")
    statement = _base64(answer, "statement")
    quote = _base64(answer, "quote")
    log = _base64(answer, "event_log") if answer.get("event_log") is not None else b""
    if len(quote) > tdx.MOST_QUOTE_BYTES or len(log) > eventlog.MOST_EVENT_LOG_BYTES:
        raise AttestationError("too_large", f"a quote of {len(quote)} bytes with an event log of {len(log)}")
    if collateral is None:
        collateral = decode_collateral(answer.get("collateral"))
    return Evidence(statement, quote, log, collateral)


def decode_collateral(value: object) -> Mapping[str, str] | None:
    """Collateral from an object or JSON text, if any. Raises AttestationError: malformed, collateral_missing."""
    if value is None:
        return None
    if isinstance(value, str):
        value = strict_json(value, "the collateral")
    if not isinstance(value, Mapping):
        raise _malformed("the collateral is not an object")
    parts = {name: value.get(name) for name in _COLLATERAL_FIELDS}
    if missing := [name for name, part in parts.items() if not part]:
        raise AttestationError("collateral_missing", f"the collateral has no {', '.join(missing)}")
    if not all(isinstance(part, str) for part in parts.values()):
        raise _malformed("a part of the collateral is not text")
    # Whatever else is there stays out: dcap-qvl would take a PCK chain from the collateral instead of the quote's.
    return {name: str(part) for name, part in parts.items()}


def judge(evidence: Evidence, policy: Policy, *, nonce: str | None, spki_sha256: str | None, now: float) -> Verdict:
    """Checks evidence against a policy. Raises AttestationError.

    nonce, spki_sha256: what was sent and the connection's key, in hex; None, for evidence from a file: the verdict then
    names them as unpinned. now: Unix time.
    """
    checked = check_quote(evidence, policy, REPORT_DATA_PREFIX, now)
    statement = decode_statement(evidence.statement)
    if nonce is not None and statement.nonce != nonce:
        raise AttestationError("nonce", "the statement has another nonce than the one sent")
    if spki_sha256 is not None and statement.tls_spki_sha256 != spki_sha256:
        raise AttestationError("key_mismatch", "the connection ends at another TLS key than the statement's")
    _check_statement(statement, policy)
    unchecked = [name for name, value in (("nonce", nonce), ("tls_spki_sha256", spki_sha256)) if value is None]
    return Verdict(
        insecure=policy.insecure_root is not None,
        unpinned=(*policy.unpinned, *unchecked),
        quote_version=checked.report.version,
        measurements={name: checked.report.fields[name].hex() for name in MEASUREMENTS},
        tcb_status=checked.tcb_status,
        advisories=checked.advisories,
        tcb_eval_data_number=checked.tcb_eval_data_number,
        platform=checked.platform.hex(),
        tls_spki_sha256=statement.tls_spki_sha256,
        image=statement.image,
        config_sha256=statement.config_sha256,
        models=statement.models,
        cluster_ca_spki_sha256=statement.cluster_ca_spki_sha256,
        verified_at=datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="seconds"),
    )


def check_quote(evidence: Evidence, policy: Policy, prefix: bytes, now: float) -> CheckedQuote:
    """Makes all checks up to the report data, whatever the statement says. Raises AttestationError.

    prefix: hashed before the statement in the report data's SHA-512; it names the protocol. now: Unix time.
    """
    policy.check_date(now)
    report = tdx.parse(evidence.quote)
    status, advisories, ppid = _check_signatures(evidence, policy, now)
    number = _check_collateral(evidence, policy, now)
    _check_platform(policy, status, advisories, ppid)
    _check_report(report, policy)
    _check_event_log(evidence.event_log, report, policy)
    if hashlib.sha512(prefix + evidence.statement).digest() != report.fields["report_data"]:
        raise AttestationError("report_data", "the quote was not made for this statement")
    return CheckedQuote(report, status, advisories, number, ppid)


def _check_signatures(evidence: Evidence, policy: Policy, now: float) -> tuple[str, tuple[str, ...], bytes]:
    """(TCB status, advisories, PPID) as dcap-qvl finds them, once every signature and certificate holds."""
    if evidence.collateral is None:
        raise AttestationError("collateral_missing", "neither the server nor the client has collateral")
    try:
        chains = {name: _signers(evidence.collateral[name]) for name in _SIGNER_CHAINS}
        collateral = dcap_qvl.QuoteCollateralV3.from_json(json.dumps({**evidence.collateral, **chains}))
        if policy.insecure_root is None:
            found = dcap_qvl.verify(evidence.quote, collateral, int(now))
        else:
            found = dcap_qvl.verify_with_root_ca(evidence.quote, collateral, policy.insecure_root, int(now))
    except (ValueError, OverflowError, x509.InvalidVersion) as error:
        message = " ".join(str(error).split())
        reason = next((reason for text, reason in _DCAP_MESSAGES if text in message.lower()), "quote_signature")
        raise AttestationError(reason, message) from error
    # dcap-qvl leaves a quoting enclave that needs configuration out of the status.
    enclave_status = json.loads(found.to_json())["qe_status"]["status"]
    if enclave_status not in policy.tcb_statuses | {"UpToDate"}:
        raise AttestationError("tcb", f"the quoting enclave's status is {enclave_status}")
    return found.status, tuple(found.advisory_ids), bytes(found.ppid)


def _signers(chain: str) -> str:
    """The chain of those who signed the collateral, written anew: readers of PEM differ in what is a certificate.

    dcap-qvl takes any certificate below Intel's root, also a platform's: one stolen key would renew its own machine.
    """
    certificates = x509.load_pem_x509_certificates(chain.encode())
    names = certificates[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not any("TCB Signing" in str(name.value) for name in names):
        raise AttestationError("quote_signature", "the collateral is not signed by Intel's signer of TCB information")
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def _check_collateral(evidence: Evidence, policy: Policy, now: float) -> int:
    """Dates and age of the collateral, whose signatures hold; returns its evaluation number.

    dcap-qvl does not mind old collateral that is still valid, nor a revocation list from the future.
    """
    assert evidence.collateral is not None
    try:
        signed = [json.loads(evidence.collateral[name]) for name in ("tcb_info", "qe_identity")]
        lists = [
            x509.load_der_x509_crl(bytes.fromhex(evidence.collateral[name])) for name in ("pck_crl", "root_ca_crl")
        ]
        issued = [datetime.datetime.fromisoformat(item["issueDate"]).timestamp() for item in signed]
        listed = [item.last_update_utc.timestamp() for item in lists]
        number = min(int(item["tcbEvaluationDataNumber"]) for item in signed)
    except (ValueError, KeyError, TypeError) as error:
        raise _malformed(f"the collateral can't be read: {error!r}") from error
    if max(*issued, *listed) > now:
        raise AttestationError("collateral_expired", "the collateral is from the future")
    # Intel renews the root's revocation list once a year: its own date has to do.
    age = now - min(*issued, listed[0])
    if policy.collateral_max_age_s is not None and age > policy.collateral_max_age_s:
        raise AttestationError("collateral_expired", f"the collateral is {age / 86400:.1f} days old")
    if policy.min_tcb_eval_data_number is not None and number < policy.min_tcb_eval_data_number:
        raise AttestationError("tcb", f"evaluation number {number}, not {policy.min_tcb_eval_data_number} or newer")
    return number


def _check_platform(policy: Policy, status: str, advisories: tuple[str, ...], ppid: bytes) -> None:
    if status not in policy.tcb_statuses:
        raise AttestationError("tcb", f"the platform's status is {status}")
    if policy.advisories_allowed is not None and (others := sorted(set(advisories) - policy.advisories_allowed)):
        raise AttestationError("tcb", f"advisories that the policy does not allow: {', '.join(others)}")
    if policy.platforms is not None and ppid not in policy.platforms:
        raise AttestationError("tcb", f"platform {ppid.hex()} is not one of the policy's")


def _check_report(report: tdx.Report, policy: Policy) -> None:
    if report.debug:
        raise AttestationError("debug_td", "the trust domain's debug attribute is set")
    if any(report.fields.get("mr_service_td", b"")):
        raise AttestationError("measurement", "a service TD is bound to the trust domain (MR_SERVICE_TD)")
    order = ("td_attributes", "mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3", "mr_config_id", "mr_seam", "xfam")
    for name in order:
        allowed = policy.measurements.get(name)
        if allowed is not None and report.fields[name] not in allowed:
            reason = "config_digest" if name == "mr_config_id" else "measurement"
            raise AttestationError(reason, f"{name} is {report.fields[name].hex()}")


def _check_event_log(log: bytes, report: tdx.Report, policy: Policy) -> None:
    if not log:
        if "event_log" in policy.unpinned:
            return
        raise AttestationError("event_log", "the server has no event log")
    for index, (replayed, quoted) in enumerate(zip(eventlog.replay(log), report.rtmrs, strict=True)):
        if replayed != quoted:
            raise AttestationError("event_log", f"the log does not replay to RTMR{index}")


def decode_statement(data: bytes) -> Statement:
    """A statement from its exact bytes. Raises AttestationError (malformed)."""
    values = strict_json(data, "the statement")
    if set(values) != _STATEMENT_FIELDS or values["v"] != 1 or type(values["v"]) is not int:
        raise _malformed("the statement is not of version 1")
    if values["hpke"] is not None or not (values["image"] is None or isinstance(values["image"], str)):
        raise _malformed("the statement's hpke or image")
    authority = values["cluster_ca_spki_sha256"]
    digests = [values["nonce"], values["tls_spki_sha256"], values["config_sha256"]]
    digests += [] if authority is None else [authority]
    models = values["models"]
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise _malformed("the statement's models")
    for model in models:
        if set(model) != {"name", "sha256"} or not isinstance(model["name"], str):
            raise _malformed("a model in the statement")
        digests.append(model["sha256"])
    if not all(isinstance(digest, str) and _HEX_256.fullmatch(digest) for digest in digests):
        raise _malformed("a digest in the statement is not 64 lower-case hexadecimal digits")
    pairs = tuple((str(model["name"]), str(model["sha256"])) for model in models)
    if len({name for name, _ in pairs}) != len(pairs):
        raise _malformed("the statement names a model twice")
    return Statement(digests[0], digests[1], values["image"], digests[2], pairs, authority)


def _check_statement(statement: Statement, policy: Policy) -> None:
    if policy.image is not None and statement.image not in policy.image:
        raise AttestationError("measurement", f"the image is {statement.image}")
    if policy.models is not None:
        if not statement.models:
            raise AttestationError("model", "the service names no model")
        for name, digest in statement.models:
            if (name, digest) not in policy.models:
                raise AttestationError("model", f"model {name!r} with SHA-256 {digest}")
    if policy.config_sha256 is not None and statement.config_sha256 not in policy.config_sha256:
        raise AttestationError("config_digest", f"the configuration's SHA-256 is {statement.config_sha256}")


def strict_json(data: bytes | str, what: str) -> dict[str, Any]:
    """An object in which no key stands twice: readers differ in which of the two they take.

    what: for the message. Raises AttestationError (malformed).
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"{what} is not JSON: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise _malformed(f"{what} is not an object")
    return value


def _base64(answer: dict[str, Any], name: str) -> bytes:
    text = answer.get(name)
    if not isinstance(text, str):
        raise _malformed(f"the answer has no {name}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(f"{name} is not base64") from None


def _malformed(message: str) -> AttestationError:
    return AttestationError("malformed", message)
