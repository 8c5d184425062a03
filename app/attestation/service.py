"""`GET /v1/attestation?nonce=`: a small HTTP service of its own, on a Unix socket that only the front reaches.

Needs no API key, because its answers are public. Nonces and statements are never logged.
"""

import base64
import logging

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.attestation.evidence import EvidenceError, EvidenceSource
from app.attestation.quoting import BusyError, QuoteQueue
from app.attestation.statement import NONCE, Facts, report_data, statement

PATH = "/v1/attestation"
logger = logging.getLogger(__name__)


class AttestationService:
    def __init__(self, facts: Facts, source: EvidenceSource, timeout_s: float) -> None:
        """timeout_s: for one quote, without the time in the queue."""
        self._facts = facts
        self._quotes = QuoteQueue(source, timeout_s)

    def application(self) -> Starlette:
        return Starlette(routes=[Route(PATH, self._answer, methods=["GET"])])

    async def _answer(self, request: Request) -> JSONResponse:
        nonces = request.query_params.getlist("nonce")
        if len(request.query_params.multi_items()) != 1 or len(nonces) != 1 or not NONCE.fullmatch(nonces[0]):
            return _error(400, "invalid_nonce", "Send one parameter, nonce: 64 lower-case hexadecimal digits.")
        said = statement(self._facts, nonces[0])
        try:
            evidence = await self._quotes.quote(report_data(said))
        except BusyError:
            return _error(429, "too_many_requests", "Too many clients verify this machine at once. Try again.")
        except EvidenceError as error:
            logger.error("No quote for a client: %s", error)
            return _error(503, "attestation_unavailable", "This machine can give no quote now. Try again later.")
        return JSONResponse(
            {
                "statement": _base64(said),
                "quote": _base64(evidence.quote),
                "event_log": _base64(evidence.event_log),
                "collateral": evidence.collateral,
                "insecure": evidence.insecure,
            },
            headers={"Cache-Control": "no-store"},
        )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _error(status: int, code: str, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 429 else "server_error"
    error = {"message": message, "type": kind, "param": "nonce" if status == 400 else None, "code": code}
    headers = {"Retry-After": "1"} if status >= 429 else {}
    return JSONResponse({"error": error}, status_code=status, headers=headers | {"Cache-Control": "no-store"})
