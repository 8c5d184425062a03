"""`/openapi.json` and `/docs`: what the service says of itself, to anybody who reaches it."""

from typing import Any

import orjson
from fastapi.responses import Response

from app.interface.documents.html import HEADERS, page


class DocumentRoutes:
    """Both forms of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._json = orjson.dumps(document)
        self._page = page(document)

    async def openapi(self) -> Response:
        """`GET /openapi.json`."""
        return Response(self._json, media_type="application/json")

    async def docs(self) -> Response:
        """`GET /docs`."""
        return Response(self._page, headers=HEADERS, media_type="text/html; charset=utf-8")
