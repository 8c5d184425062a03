"""`POST /v1/memory/warm`: loads a stored conversation's KV pages into memory before its next turn."""

import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.planning.job import Job
from app.interface.generate.planning.responses import plan_response
from app.interface.generate.reception import Reception
from app.interface.generate.sequences import sequences
from app.interface.generate.service import ServedModel
from app.interface.http.guard import json_response
from app.interface.request.body import read_body
from app.interface.request.callers import Caller, caller_of
from app.interface.request.streaming import until_disconnect
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.users import texts_of
from app.interface.users.texts import History
from app.interface.wire.memory import WarmedMemory, WarmRequest
from app.interface.wire.parse import parse
from app.interface.wire.responses import ResponseRequest


class WarmRoute:
    """The route of a service with accounts. It generates one token, which is discarded."""

    def __init__(self, reception: Reception, gate: AccountsGate) -> None:
        self._reception = reception
        self._gate = gate

    async def warm(self, request: Request) -> Response:
        """`POST /v1/memory/warm`. Raises ApiError (400, 404), ClientGoneError."""
        body = parse(WarmRequest, await read_body(request, self._reception.service.settings.max_body_bytes))
        caller, texts = caller_of(request), texts_of(self._gate, request)
        conversation = await texts.get(body.conversation)
        name = self._reception.service.name_of(body.model or "")
        served = self._reception.service.model(name)
        warmed = WarmedMemory(tokens=0, remembered_tokens=0)
        history = await texts.branch(conversation.id)
        if history.items:
            turn = {"instructions": body.instructions, **_thinking(conversation.metadata)}
            job = await self._reception.in_thread(lambda: self._plan(name, served, history, turn, caller))
            remembered = await until_disconnect(request.receive, self._run(job, conversation.id, name, served, caller))
            warmed = WarmedMemory(tokens=job.prompt_tokens, remembered_tokens=remembered)
        return json_response(warmed.model_dump())

    def _plan(self, name: str, served: ServedModel, history: History, turn: Mapping[str, Any], caller: Caller) -> Job:
        """Plans the next turn without its question. turn: what is known of its request."""
        values = {"model": name, "input": history.items, "max_output_tokens": 1, "truncation": "auto", **turn}
        request = ResponseRequest.model_validate(values)
        limits = self._reception.service.limits
        return plan_response(
            served.chat.with_known_answers(history.answers), request, limits, caller, f"warm_{uuid.uuid4().hex}"
        )

    async def _run(self, job: Job, conversation_id: str, name: str, served: ServedModel, caller: Caller) -> int:
        """Returns how many of the prompt's tokens were cached."""
        generate = sequences(
            self._reception.service,
            served.generate,
            caller,
            name,
            job.prompt_tokens,
            conversation=conversation_id,
            shared_tokens=job.shared_tokens,
        )
        async with aclosing(generate(job.requests[0])) as deltas:
            return sum([delta.cached_tokens async for delta in deltas])


def _thinking(metadata: Mapping[str, str]) -> dict[str, bool]:
    """The next turn's `enable_thinking`, as the page and the terminal keep it with a chat.

    Some templates write it into the system prompt.
    """
    mode = metadata.get("thinking")
    return {"enable_thinking": mode != "off"} if mode in ("off", "short", "full") else {}
