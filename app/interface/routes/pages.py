"""Serves the web pages: the chat, `/ui/...`, and with accounts `/login`, `/account` and `/operator`.

`make page` builds them. All files are read once, and a path is only looked up among them. Clients get compressed files
if they accept them. Knows nothing of what the web pages do.
"""

import hashlib
import logging
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from fastapi.responses import Response

from app.interface.request import errors

FOLDER = Path(__file__).parents[1] / "web/dist"
NOT_BUILT = "The pages are not built: run `make page`, and start the service again."
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self'; manifest-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_HASHED = "assets/"
"""Files in this folder have a hash of their content in their names."""
_LASTING = "public, max-age=31536000, immutable"
_REFUSED = re.compile(r"\s*q=0(\.0*)?\s*")
_CODINGS = {"br": ".br", "gzip": ".gz"}
"""The endings of compressed files, best compression first."""
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Set here because the machine's own table of types varies."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    bodies: Mapping[str, bytes]
    """The file by content coding, best compression first; the last one is "identity"."""
    media_type: str
    hash: str


class PageFiles:
    """The routes, for the files of one folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """None: where `make page` builds them. Without the folder the routes answer 503, and the log says why."""
        folder = folder or FOLDER
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        whole = [path for path in paths if path.suffix not in _CODINGS.values()]
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in whole}
        if not self._files:
            logger.error(NOT_BUILT)

    def chat(self, request: Request, *, has_accounts: bool) -> Response:
        """Returns the chat's web page. Browsers may not cache it if it is for users only."""
        if has_accounts:
            return self._answer(request, "chat-accounts.html", "no-store")
        return self._answer(request, "chat.html")

    async def login(self, request: Request) -> Response:
        """`GET /login`."""
        return self._answer(request, "login.html")

    async def account(self, request: Request) -> Response:
        """`GET /account`."""
        return self._answer(request, "account.html")

    async def operator(self, request: Request) -> Response:
        """`GET /operator`."""
        return self._answer(request, "operator.html")

    async def file(self, request: Request, path: str) -> Response:
        """`GET /ui/{path}`. Raises ApiError (404)."""
        if path not in self._files or path.endswith(".html"):
            raise errors.no_such_route(request.method, request.url.path)
        return self._answer(request, path, _LASTING if path.startswith(_HASHED) else "no-cache")

    def _answer(self, request: Request, name: str, lifetime: str = "no-cache") -> Response:
        file = self._files.get(name)
        if file is None:
            return Response(NOT_BUILT + "\n", 503, media_type="text/plain")
        accepted = _accepted(request.headers.get("accept-encoding", ""))
        coding = next(one for one in file.bodies if one in accepted)
        tag = f'"{file.hash}-{coding}"'
        headers = {**_HEADERS, "Cache-Control": lifetime, "ETag": tag, "Vary": "Accept-Encoding"}
        known = request.headers.get("if-none-match", "").split(",")
        if tag in (one.strip().removeprefix("W/") for one in known):
            return Response(status_code=304, headers=headers)
        if coding != "identity":
            headers["Content-Encoding"] = coding
        return Response(file.bodies[coding], headers=headers, media_type=file.media_type)


def _accepted(header: str) -> set[str]:
    """Returns the content codings that a client accepts; "identity" always."""
    parts = (part.partition(";") for part in header.lower().split(","))
    return {"identity", *(coding.strip() for coding, _, weight in parts if not _REFUSED.fullmatch(weight))}


def _read(path: Path) -> _File:
    body = path.read_bytes()
    guessed = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    beside = {coding: path.with_name(path.name + ending) for coding, ending in _CODINGS.items()}
    bodies = {coding: other.read_bytes() for coding, other in beside.items() if other.exists()}
    return _File({**bodies, "identity": body}, guessed, hashlib.sha256(body).hexdigest()[:32])
