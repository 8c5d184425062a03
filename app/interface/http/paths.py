"""Paths as clients write them: accepts common ones without `/v1`, and hints at the right path for unknown ones.

It knows which paths other servers have; the application's state has those of this one.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

API: Final = "/v1"
_WITHOUT_VERSION: Final = frozenset(
    {"/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/rerank", "/responses", "/score"}
)
"""Paths requested by clients whose base URL lacks `/v1`."""
_BELOW_THEM: Final = ("/messages/", "/models/", "/responses/")
_OLLAMA: Final = re.compile(r"/api/(chat|generate|tags|show|version|ps|pull|embed|embeddings)/?")
_TWICE: Final = re.compile(r"(/v1){2,}(?=/|$)")
_BATCHES: Final = "/v1/messages/batches"
_LONGEST: Final = 200
"""The maximum length of a path that is compared with existing ones."""
_ALIKE: Final = 0.85


class VersionlessPaths:
    """Rewrites common paths without `/v1` to those with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on, with the path rewritten."""
        if scope["type"] == "http":
            path = scope["path"]
            if path in _WITHOUT_VERSION or path.startswith(_BELOW_THEM):
                # In place: outer middlewares read the route from it.
                scope["path"] = API + path
                scope["raw_path"] = API.encode() + (scope.get("raw_path") or path.encode())
        await self._app(scope, receive, send)


def hint_of(request: Request) -> str:
    """Returns the hint of `hint_for` for the application's paths."""
    return hint_for(request.url.path, getattr(request.app.state, "paths", ()))


def hint_for(path: str, known: Sequence[str] = ()) -> str:
    """Returns a sentence that may help a client that asked for an unknown path.

    known: the existing paths, with variables as `{name}`.
    """
    if _OLLAMA.fullmatch(path):
        return "This is no Ollama: its clients reach the service as an OpenAI server, with the base URL ending in /v1."
    if _TWICE.search(path):
        return "The base URL ends in /v1, and the client adds another one: leave one of them out."
    if path == _BATCHES or path.startswith(f"{_BATCHES}/"):
        return "Batches of messages are not supported: send each to /v1/messages."
    if meant := _meant(path, known):
        return f"Did you mean {meant}?"
    return "The API is below /v1; GET /docs lists its routes."


def _meant(path: str, known: Sequence[str]) -> str | None:
    """Returns the path that ends alike, or else is spelled similarly."""
    plain = [one for one in known if "{" not in one]
    asked = path.rstrip("/")
    ends_alike = [one for one in plain if asked.endswith((one, one.removeprefix(API))) and one.startswith(API)]
    if ends_alike:
        return max(ends_alike, key=len)
    alike = get_close_matches(asked[:_LONGEST], plain, 1, _ALIKE)
    return alike[0] if alike else None
