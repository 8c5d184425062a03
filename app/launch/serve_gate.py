"""The Serve gate: the restricted access to Ray's dashboard on a confidential cluster's head.

The dashboard lets its users run code, so it listens on loopback with a token that KubeRay's operator does not have. The
operator asks the gate, with a token of its own, for the state of the applications, and can submit only the measured
configuration.
"""

import hmac
import logging

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.launch.measured_config import MeasuredConfig
from app.launch.small_server import BodyError, error, read_body
from redoubt_verify.errors import AttestationError, printable
from redoubt_verify.verify import strict_json

PATH = "/api/serve/applications/"
_QUERIES = (b"", b"api_type=declarative")
_TOKEN_HEADERS = ("authorization", "x-ray-authorization")
_MOST_BODY_BYTES = 1 << 20
_MOST_ANSWER_BYTES = 8 << 20
_TIMEOUT_S = 60.0
logger = logging.getLogger(__name__)


class ServeGate:
    """The gate's ASGI application."""

    def __init__(self, config: MeasuredConfig, *, operator_token: str, dashboard_port: int, ray_token: str) -> None:
        """operator_token: what the operator must send. dashboard_port: on loopback, where Ray requires ray_token."""
        self._config = config
        self._expected = f"Bearer {operator_token}".encode()
        self._dashboard = f"http://127.0.0.1:{dashboard_port}"
        self._headers = {"Authorization": f"Bearer {ray_token}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        given = next((request.headers[name] for name in _TOKEN_HEADERS if name in request.headers), "")
        if not hmac.compare_digest(given.encode(), self._expected):
            return error(401, "unauthorized", "Send the cluster's token: 'Authorization: Bearer TOKEN'.")
        # The raw bytes: nothing is decoded, so nothing can mean another path further on.
        target, query = request.scope["raw_path"], request.scope["query_string"]
        if target != PATH.encode() or "upgrade" in request.headers or "transfer-encoding" in request.headers:
            return _refused()
        if request.method == "GET" and query in _QUERIES and request.headers.get("content-length", "0") == "0":
            return await self._forward("GET", f"{PATH}?{query.decode()}" if query else PATH)
        if request.method == "PUT" and not query:
            return await self._put(request)
        return _refused()

    async def _put(self, request: Request) -> Response:
        try:
            values = strict_json(await read_body(request, _MOST_BODY_BYTES), "the configuration")
        except BodyError as refused:
            return refused.response
        except AttestationError as malformed:
            return _refused(str(malformed))
        # KubeRay's incremental upgrade says how much of the capacity a cluster should have by now.
        share = values.pop("target_capacity", None)
        if share is not None and (type(share) not in (int, float) or not 0 <= share <= 100):
            return _refused("target_capacity is not a number from 0 to 100")
        if (place := self._config.difference(values)) is not None:
            return _refused(f"the configuration is not the measured one: {place} differs")
        more = {} if share is None else {"target_capacity": share}
        return await self._forward("PUT", PATH, self._config.to_json(more))

    async def _forward(self, method: str, target: str, content: bytes | None = None) -> Response:
        """Forwards a request to the dashboard. content: ours, never the caller's bytes."""
        headers = self._headers if content is None else self._headers | {"Content-Type": "application/json"}
        try:
            async with (
                httpx.AsyncClient(base_url=self._dashboard, timeout=_TIMEOUT_S, trust_env=False) as client,
                client.stream(method, target, content=content, headers=headers) as answer,
            ):
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _MOST_ANSWER_BYTES:
                        return error(502, "dashboard", "The dashboard's answer is too large.")
        except httpx.HTTPError as failed:
            logger.warning("The dashboard does not answer the Serve gate: %r", failed)
            return error(503, "dashboard", "The dashboard does not answer yet.")
        return Response(
            bytes(body), status_code=answer.status_code, media_type=answer.headers.get("content-type", "text/plain")
        )


def _refused(reason: str = "") -> Response:
    if reason:
        logger.warning("The Serve gate refused a configuration: %s", printable(reason))
    rule = f"This head answers GET and PUT of {PATH} only, and takes only the configuration that is measured"
    return error(403, "refused", f"{rule}{f': {printable(reason)}' if reason else ''}.")
