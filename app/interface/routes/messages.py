"""`/v1/messages`, Anthropic's API: the messages family for `app.interface.generate.generation`."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.early import Silent
from app.interface.generate.answers.messages import PING, MessageBody, MessageEvents, message_error
from app.interface.generate.generation import Family, generate
from app.interface.generate.planning.messages import plan_message, prompt_length
from app.interface.generate.reception import Reception
from app.interface.request.callers import Caller
from app.interface.wire.messages import CountTokensRequest, MessagesRequest, PromptLength

MESSAGES = Family(
    "msg_",
    MessagesRequest,
    keep_alive=PING,
    early=lambda *_: Silent(message_error),
    plan=plan_message,
    body=MessageBody,
    events=MessageEvents,
)


class MessageRoutes:
    """The routes of one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def messages(self, request: Request) -> Response:
        """`POST /v1/messages`."""
        return await generate(self._reception, request, MESSAGES)

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`. No worker is asked."""
        length = await self._reception.read_and_plan(request, CountTokensRequest, self._length)
        return Response(length.model_dump_json(), media_type="application/json")

    def _length(self, body: CountTokensRequest, _: Caller) -> PromptLength:
        model = self._reception.service.model(body.model).chat
        return PromptLength(input_tokens=prompt_length(model, body))
