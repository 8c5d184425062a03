"""`GET /v1/attestation?nonce=`: a small HTTP service of its own, on a Unix socket that only the front reaches.

Needs no API key: it says nothing that a client may not know. A quote takes the processor tens of milliseconds, so one
is made at a time, a few wait, and further requests are refused. Nonces and statements are never logged.
"""

import asyncio
import base64
import logging

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.attestation.evidence import EvidenceError, EvidenceSource
from app.attestation.statement import NONCE, Facts, report_data, statement

PATH = "/v1/attestation"
_MOST_WAITING = 16
logger = logging.getLogger(__name__)


class AttestationService:
    """Answers with a statement and a quote over it."""

    def __init__(self, facts: Facts, source: EvidenceSource, timeout_s: float) -> None:
        """timeout_s: for one quote, without the wait for others."""
        self._facts = facts
        self._source = source
        self._timeout_s = timeout_s
        self._one = asyncio.Lock()
        self._waiting = 0

    def application(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=[Route(PATH, self._answer, methods=["GET"])])

    async def _answer(self, request: Request) -> JSONResponse:
        nonces = request.query_params.getlist("nonce")
        if len(request.query_params.multi_items()) != 1 or len(nonces) != 1 or not NONCE.fullmatch(nonces[0]):
            return _error(400, "invalid_nonce", "Send one parameter, nonce: 64 lower-case hexadecimal digits.")
        if self._waiting >= _MOST_WAITING:
            return _error(429, "too_many_requests", "Too many clients verify this machine at once. Try again.")
        said = statement(self._facts, nonces[0])
        self._waiting += 1
        try:
            async with self._one, asyncio.timeout(self._timeout_s):
                evidence = await self._source.quote(report_data(said))
        except (EvidenceError, TimeoutError) as error:
            logger.error("No quote for a client: %s", str(error) or f"none within {self._timeout_s:g} s")
            return _error(503, "attestation_unavailable", "This machine can give no quote now. Try again later.")
        finally:
            self._waiting -= 1
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
