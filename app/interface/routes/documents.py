"""`/openapi.json` and `/docs`: the description of the service, which needs no key."""

from functools import cached_property
from typing import Any

import orjson
from fastapi.responses import Response

from app.interface.documents.html import HEADERS, as_html


class DocumentRoutes:
    """The two routes of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    @cached_property
    def _json(self) -> bytes:
        return orjson.dumps(self._document)

    @cached_property
    def _html(self) -> str:
        return as_html(self._document)

    async def openapi(self) -> Response:
        """`GET /openapi.json`."""
        return Response(self._json, media_type="application/json")

    async def docs(self) -> Response:
        """`GET /docs`."""
        return Response(self._html, headers=HEADERS, media_type="text/html; charset=utf-8")
