"""Paths as clients write them: those without `/v1` that are taken for the right ones, and hints for what is not there.

It knows which paths other servers have; the application has those of this one in its state.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

API: Final = "/v1"
_WITHOUT_VERSION: Final = frozenset({"/chat/completions", "/completions", "/embeddings", "/models", "/responses"})
"""What clients ask whose base URL lacks `/v1`."""
_BELOW_THEM: Final = ("/models/", "/responses/")
_OLLAMA: Final = re.compile(r"/api/(chat|generate|tags|show|version|ps|pull|embed|embeddings)/?")
_TWICE: Final = re.compile(r"(/v1){2,}(?=/|$)")
_LONGEST: Final = 200
"""Characters of a path that is compared with those that there are."""
_ALIKE: Final = 0.85


class VersionlessPaths:
    """Takes the common paths without `/v1` for those with it."""

    def __init__(self, app: ASGIApp) -> None:
        """An ASGI middleware."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on, with the path that is meant."""
        if scope["type"] == "http":
            path = scope["path"]
            if path in _WITHOUT_VERSION or path.startswith(_BELOW_THEM):
                # In place: those around look in it for the route.
                scope["path"] = API + path
                scope["raw_path"] = API.encode() + (scope.get("raw_path") or path.encode())
        await self._app(scope, receive, send)


def hint_of(request: Request) -> str:
    """See `hint_for`; the paths that are there are those of the application."""
    return hint_for(request.url.path, getattr(request.app.state, "paths", ()))


def hint_for(path: str, known: Sequence[str] = ()) -> str:
    """What may help a client that asked for a path that is not there; one sentence.

    known: the paths that are there, with variables as `{name}`.
    """
    if _OLLAMA.fullmatch(path):
        return "This is no Ollama: its clients reach the service as an OpenAI server, with the base URL ending in /v1."
    if _TWICE.search(path):
        return "The base URL ends in /v1, and the client adds another one: leave one of them out."
    if meant := _meant(path, known):
        return f"Did you mean {meant}?"
    return "The API is below /v1; GET /docs lists its routes."


def _meant(path: str, known: Sequence[str]) -> str | None:
    """The path that ends like this one, or else is written nearly like it."""
    plain = [one for one in known if "{" not in one]
    asked = path.rstrip("/")
    ends_alike = [one for one in plain if asked.endswith((one, one.removeprefix(API))) and one.startswith(API)]
    if ends_alike:
        return max(ends_alike, key=len)
    alike = get_close_matches(asked[:_LONGEST], plain, 1, _ALIKE)
    return alike[0] if alike else None
