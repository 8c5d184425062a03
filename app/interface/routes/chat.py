"""`/v1/chat/completions`: the chat family for `app.interface.generate.generation`."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.chat import ChatBody, chat_events
from app.interface.generate.answers.chunks import error_event
from app.interface.generate.answers.early import Silent
from app.interface.generate.generation import Family, generate
from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.reception import Reception
from app.interface.wire.chat import ChatCompletionRequest

CHAT = Family(
    "chatcmpl-",
    ChatCompletionRequest,
    early=lambda *_: Silent(error_event),
    plan=plan_chat,
    body=ChatBody,
    events=chat_events,
)


class ChatRoutes:
    """The route of one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def chat_completions(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await generate(self._reception, request, CHAT)
