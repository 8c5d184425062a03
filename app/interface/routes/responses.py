"""`/v1/responses`. Nothing of a response is stored: it is gone once it is sent."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.answers.responses import ResponseBody, ResponseEvents
from app.interface.generation import Family, generate
from app.interface.planning.responses import plan_response, renamed_for_responses
from app.interface.reception import Reception
from app.interface.wire.responses import ResponseRequest

RESPONSES = Family("resp_", ResponseRequest, plan_response, ResponseBody, ResponseEvents, renamed_for_responses)


class ResponseRoutes:
    """The route, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        return await generate(self._reception, request, RESPONSES)
