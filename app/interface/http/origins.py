"""CORS: which web sites may use the API from a browser (`ingress.allowed_origins`).

Other sites are answered as without this setting: neither they nor their preflights get CORS headers. Knows nothing of
keys: a preflight carries none, and the request after it is checked as every other.
"""

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.interface.request import errors

_METHODS: Final = ("GET", "HEAD", "POST", "DELETE")
_READABLE: Final = (
    "X-Request-Id",
    "Request-Id",
    "Retry-After",
    *(f"X-RateLimit-{what}-{of}" for of in ("Requests", "Tokens") for what in ("Limit", "Remaining", "Reset")),
)
"""Response headers that web pages may read, besides the default ones."""


class AllowedOrigins(CORSMiddleware):
    """Answers preflights of these origins, and lets them read answers. Never with cookies."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """origins: as browsers write them; "*": all."""
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),  # clients send many of their own
            allow_private_network=True,
            expose_headers=_READABLE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers a preflight."""
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or not self.is_allowed_origin(origin):
            await self.app(scope, receive, send)
            return
        await super().__call__(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answers a preflight."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return Response(
            errors.invalid(f"Pages of other sites may use {', '.join(_METHODS)} only.").body(),
            400,
            media_type="application/json",
        )
