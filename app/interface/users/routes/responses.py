"""`/v1/responses/{id}`: users' stored responses."""

import re
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.chunks import event_json
from app.interface.generate.answers.running import RunningAnswer
from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.streaming import EventStream
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.listing import BEFORE, list_query
from app.interface.users.routes.users import id_of, texts_of, user_of
from app.interface.wire.conversations import DeletedResponse
from app.interface.wire.responses import ResponseError

_KNOWN = frozenset({"stream", "starting_after", "include_obfuscation", "include", "include[]"})
"""`include` has no effect: a search's results are always there."""
_OPEN = ("queued", "in_progress")
_LAST_EVENTS = {
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}


class StoredResponseRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate, keep_alive_s: float = 0.0) -> None:
        """keep_alive_s: see `EventStream`."""
        self._gate = gate
        self._keep_alive_s = keep_alive_s

    async def response(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`; with `?stream=true&starting_after=N` as events, from event N + 1."""
        after = _starting_after(request)
        running = self._running(request)
        if running is not None:
            if after is None:
                return Response(running.body(), media_type="application/json")
            return EventStream(running.events(after), keep_alive_s=self._keep_alive_s)
        body = await self._stored(request)
        if after is None:
            return json_response(body)
        if body["status"] in _OPEN:
            raise errors.answered_elsewhere()
        kind = _LAST_EVENTS.get(body["status"], "response.completed")
        data = event_json({"type": kind, "sequence_number": after + 1, "response": body})
        return Response(b"event: %b\ndata: %b\n\n" % (kind.encode(), data), media_type="text/event-stream")

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`: ends a background response; what it has so far is stored."""
        running = self._running(request)
        if running is not None:
            await running.cancel()
            return Response(running.body(), media_type="application/json")
        body = await self._stored(request)
        if body["status"] in _OPEN:
            raise errors.answered_elsewhere()
        if not body["background"]:
            message = "Only a response with 'background': true can be cancelled: this one has ended."
            raise errors.invalid(message, code="invalid_value")
        return json_response(body)

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        query = list_query(request, BEFORE)
        found = (await texts_of(self._gate, request).response(id_of(request))).input
        return json_response(query.listed(query.cut(found)))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`: later responses lose it as history; in a conversation its items stay."""
        running = self._running(request)
        if running is not None:
            await running.cancel()
        await texts_of(self._gate, request).delete_response(id_of(request))
        if running is not None:
            self._gate.running.forget(id_of(request))
        return json_response(DeletedResponse(id=id_of(request)).model_dump())

    def _running(self, request: Request) -> RunningAnswer | None:
        _, identity = user_of(request)
        return self._gate.running.find(id_of(request), identity.user_id)

    async def _stored(self, request: Request) -> dict[str, Any]:
        """Returns the stored body. Another ingress may be writing it; if that one has died, the status is `failed`."""
        stored = await texts_of(self._gate, request).response(id_of(request))
        if stored.body["status"] not in _OPEN or stored.is_open:
            return stored.body
        lost = ResponseError(code="server_error", message="The service stopped while it wrote this answer.")
        return {**stored.body, "status": "failed", "error": lost.model_dump()}


def _starting_after(request: Request) -> int | None:
    """Returns the number of the last event the client has seen; -1 for none; None if it wants no events."""
    values = request.query_params
    if unknown := sorted(values.keys() - _KNOWN):
        raise errors.invalid(f"There is no parameter {unknown[0]!r}.", unknown[0], "unknown_parameter")
    if values.get("include_obfuscation", "false") != "false":
        raise errors.invalid("'include_obfuscation' is not supported.", "include_obfuscation", "unsupported_parameter")
    if values.get("stream", "false") not in ("true", "false"):
        raise errors.invalid("'stream' is true or false.", "stream", "invalid_value")
    after = values.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,9}", after):
        raise errors.invalid("'starting_after' is the number of an event.", "starting_after", "invalid_value")
    if values.get("stream") != "true":
        if "starting_after" in values:
            raise errors.invalid("'starting_after' goes with 'stream=true'.", "starting_after", "invalid_value")
        return None
    return int(after)
