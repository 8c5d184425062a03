"""Sources of quotes: the confidential container's agent, or generated keys for trying it out.

Knows nothing of statements: a quote is made for 64 bytes of report data.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from app import guest_components
from app.attestation.padding import exact_quote, used_event_log
from app.attestation.soft import SoftTee
from app.attestation.soft_files import read_pki

MOST_QUOTE_BYTES = 16 << 10
MOST_EVENT_LOG_BYTES = 256 << 10


class EvidenceError(RuntimeError):
    """A quote can't be made; the message is for the operator's log."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quote, with what is needed to verify it."""

    quote: bytes
    event_log: bytes
    """The confidential container's log of measurements after the start (CCEL); empty if there is none."""
    collateral: Mapping[str, str] | None = None
    """Intel's collateral for the platform, in its nine parts; None: clients have it, or fetch it themselves."""
    insecure: bool = False
    """Whether no processor backs it."""


class EvidenceSource(Protocol):
    """Makes quotes."""

    async def quote(self, report_data: bytes) -> Evidence:
        """Makes evidence over 64 bytes. Raises EvidenceError."""


class AgentEvidence:
    """Quotes from the attestation agent of a confidential container (guest-components 0.21, `/aa/evidence`)."""

    def __init__(self, client: httpx.AsyncClient, collateral: Mapping[str, str] | None) -> None:
        """client: reaches the agent, with a timeout. collateral: handed to clients with each quote."""
        self._client = client
        self._collateral = collateral

    async def quote(self, report_data: bytes) -> Evidence:
        parameters = {"runtime_data": base64.b64encode(report_data).decode(), "encoding": "base64"}
        try:
            response = await self._client.get(f"{guest_components.ADDRESS}/aa/evidence", params=parameters)
            response.raise_for_status()
            answer = json.loads(response.content)
            quote = exact_quote(base64.b64decode(answer["quote"], validate=True))
            event_log = used_event_log(base64.b64decode(answer.get("cc_eventlog") or "", validate=True))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EvidenceError(
                f"the attestation agent at {guest_components.ADDRESS} gave no quote: {error!r}"
            ) from error
        if len(quote) > MOST_QUOTE_BYTES or len(event_log) > MOST_EVENT_LOG_BYTES:
            raise EvidenceError(f"a quote of {len(quote)} bytes with a log of {len(event_log)}: too large")
        return Evidence(quote, event_log, self._collateral)


class SoftEvidence:
    """Quotes of a soft TEE, which prove nothing."""

    def __init__(self, tee: SoftTee) -> None:
        self.tee = tee
        self._collateral = tee.collateral()

    async def quote(self, report_data: bytes) -> Evidence:
        return Evidence(self.tee.quote(report_data), self.tee.event_log, self._collateral, insecure=True)


def evidence_source(
    kind: str, *, timeout_s: float, collateral: Mapping[str, str] | None, soft_pki: str | None
) -> AgentEvidence | SoftEvidence:
    """The source of a kind of evidence.

    Args:
        kind: "coco" or "soft".
        timeout_s: for the agent's answer.
        collateral: sent to clients with the processor's quotes.
        soft_pki: a folder with the keys that sign soft evidence (`soft_files`); None: new ones.

    Raises ValueError if that folder can't be read.
    """
    if kind == "soft":
        return SoftEvidence(SoftTee.make(pki=None if soft_pki is None else read_pki(Path(soft_pki))))
    return AgentEvidence(httpx.AsyncClient(timeout=timeout_s, trust_env=False), collateral)
