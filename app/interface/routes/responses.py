"""`/v1/responses`: answers, and those that are stored for users."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.accounts.gate import AccountsGate
from app.interface.accounts.stored_answers import StoredAnswer, StoredAnswers, refuse_stored
from app.interface.answers.responses import ResponseBody, ResponseEvents
from app.interface.callers import Caller
from app.interface.generation import Family, generate
from app.interface.guard import json_response
from app.interface.planning.responses import plan_response, renamed_for_responses
from app.interface.reception import Reception
from app.interface.routes.listing import listed, page_of
from app.interface.routes.users import texts_of, user_of
from app.interface.wire.conversations import DeletedResponse
from app.interface.wire.responses import ResponseRequest

RESPONSES = Family("resp_", ResponseRequest, plan_response, ResponseBody, ResponseEvents, renamed_for_responses)


class ResponseRoutes:
    """The route that answers, over one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        accounts = reception.service.accounts
        self._stored = None if accounts is None else StoredAnswers(accounts)

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        return await generate(self._reception, request, RESPONSES, self._begin)

    async def _begin(self, body: ResponseRequest, caller: Caller, response_id: str) -> StoredAnswer | None:
        if self._stored is None:
            refuse_stored(body)
            return None
        return await self._stored.begin(body, caller, response_id)


class StoredResponseRoutes:
    """The routes for users' stored responses."""

    def __init__(self, gate: AccountsGate) -> None:
        self._gate = gate

    async def response(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`."""
        return json_response((await texts_of(self._gate, request).response(request.path_params["id"])).body)

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        page = page_of(request)
        found = (await texts_of(self._gate, request).response(request.path_params["id"])).input
        return json_response(listed(page.cut(found), page.limit))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`: what goes on from it begins after it; in a conversation its items stay."""
        caller, _ = user_of(request)
        await self._gate.stored.delete_response(caller.secret, request.path_params["id"])
        return json_response(DeletedResponse(id=request.path_params["id"]).model_dump())
