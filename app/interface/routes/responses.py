"""`/v1/responses`: the responses family for `app.interface.generate.generation`."""

from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.responses import ResponseBody, ResponseEvents
from app.interface.generate.generation import Family, Generation, generate
from app.interface.generate.planning.responses import plan_response, refuse_stored, renamed_for_responses
from app.interface.generate.reception import Reception
from app.interface.wire.responses import ResponseRequest

RESPONSES = Family(
    "resp_", ResponseRequest, renamed_for_responses, plan=plan_response, body=ResponseBody, events=ResponseEvents
)
Store = Callable[[Generation[ResponseRequest]], Awaitable[Generation[ResponseRequest]]]


async def store_nothing(plain: Generation[ResponseRequest]) -> Generation[ResponseRequest]:
    """The default without accounts. Raises ApiError (400) if the request needs some."""
    refuse_stored(plain.received.body)
    return plain


class ResponseRoutes:
    """The route of one service; `app.interface.users` has those for stored responses."""

    def __init__(self, reception: Reception, store: Store = store_nothing) -> None:
        """store: see `generate`."""
        self._reception = reception
        self._store = store

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        return await generate(self._reception, request, RESPONSES, self._store)
