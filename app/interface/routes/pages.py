"""`/ui/...`, and with accounts `/login`, `/account` and `/operator`: what `make page` has built.

All files are read once, and a path is only looked up among them. Knows nothing of what the pages do.
"""

import hashlib
import json
import logging
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from fastapi.responses import Response

from app.interface import errors

FOLDER = Path(__file__).parents[1] / "web/dist"
CHAT = "src/chat/main.tsx"
"""The source of the chat surface."""
NOT_BUILT = "The pages are not built: run `make page`, and start the service again."
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_HASHED = "assets/"
"""Files below have a hash of their content in their names."""
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
"""Not left to the machine's own table of types."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    tag: str


class PageFiles:
    """The routes, over the files of one folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """None: where `make page` builds them. Without the folder the routes answer 503, and the log says why."""
        folder = folder or FOLDER
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}
        if not self._files:
            logger.error(NOT_BUILT)

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
        if not path.startswith(_HASHED) or path not in self._files:
            raise errors.no_such_route(request.method, request.url.path)
        return self._answer(request, path)

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return Response(NOT_BUILT + "\n", 503, media_type="text/plain")
        lifetime = "public, max-age=31536000, immutable" if name.startswith(_HASHED) else "no-cache"
        headers = {**_HEADERS, "Cache-Control": lifetime, "ETag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)


@dataclass(frozen=True, slots=True)
class Built:
    """The addresses of what an entry was built into."""

    scripts: list[str]
    styles: list[str]


def built(entry: str, folder: Path | None = None) -> Built | None:
    """What the source `entry` was built into, with the styles of all that it imports; None: it was not built."""
    try:
        manifest = json.loads(((folder or FOLDER) / ".vite/manifest.json").read_text())
    except FileNotFoundError:
        return None
    if entry not in manifest:
        return None
    styles: list[str] = []
    seen, todo = {entry}, [entry]
    while todo:
        part = manifest[todo.pop()]
        styles += [style for style in part.get("css", []) if style not in styles]
        todo += [name for name in part.get("imports", []) if name not in seen]
        seen.update(todo)
    return Built([f"/ui/{manifest[entry]['file']}"], [f"/ui/{style}" for style in styles])


def _read(path: Path) -> _File:
    body = path.read_bytes()
    guessed = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(body, guessed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
