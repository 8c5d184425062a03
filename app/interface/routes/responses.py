"""`/v1/responses`: the responses family for `app.interface.generate.generation`."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.responses import EarlyResponse, ResponseBody, ResponseEvents
from app.interface.generate.generation import Family, Stored, generate
from app.interface.generate.planning.chat import template_options
from app.interface.generate.planning.responses import chat_request, plan_response, renamed_for_responses
from app.interface.generate.reception import Reception
from app.interface.request.callers import caller_of
from app.interface.request.errors import ApiError
from app.interface.wire.responses import InputTokens, InputTokensRequest, ResponseRequest

RESPONSES = Family(
    "resp_",
    ResponseRequest,
    renamed_for_responses,
    early=EarlyResponse,
    plan=plan_response,
    body=ResponseBody,
    events=ResponseEvents,
)


class ResponseRoutes:
    """The routes of one service; `app.interface.users` has those for stored responses."""

    def __init__(self, reception: Reception, stored: Stored | None = None) -> None:
        self._reception = reception
        self._stored = stored or Stored()

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        return await generate(self._reception, request, RESPONSES, self._stored.stages)

    async def input_tokens(self, request: Request) -> Response:
        """`POST /v1/responses/input_tokens`: the prompt's length. No worker is asked."""
        caller = caller_of(request)
        body = await self._reception.read_and_plan(request, InputTokensRequest, lambda body, _: body)
        whole = await self._stored.whole(body, caller)
        count = await self._reception.in_thread(lambda: self._counted(whole))
        return Response(InputTokens(input_tokens=count).model_dump_json(), media_type="application/json")

    def _counted(self, body: ResponseRequest) -> int:
        model = self._reception.service.model(body.model).chat
        try:
            chat = chat_request(body)
            tools = () if chat.tool_choice == "none" else chat.tools or ()
            options = template_options(chat, model.thoughts.default)
            return len(model.chat_prompt(chat.messages, tools, chat.response_format, bounded=False, options=options))
        except ApiError as error:
            raise renamed_for_responses(error) from None
