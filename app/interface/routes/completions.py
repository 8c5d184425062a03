"""`/v1/completions`: the completions family for `app.interface.generate.generation`."""

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.answers.chunks import error_event
from app.interface.generate.answers.completions import CompletionBody, completion_events
from app.interface.generate.answers.early import Silent
from app.interface.generate.generation import Family, generate
from app.interface.generate.planning.completions import plan_completion
from app.interface.generate.reception import Reception
from app.interface.wire.completions import CompletionRequest

COMPLETIONS = Family(
    "cmpl-",
    CompletionRequest,
    early=lambda *_: Silent(error_event),
    plan=plan_completion,
    body=CompletionBody,
    events=completion_events,
)


class CompletionRoutes:
    """The route of one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await generate(self._reception, request, COMPLETIONS)
