"""Answers one line of a batch by the stages of its route. Knows neither files nor batches."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from app.interface.generate.reception import Reception, Work
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.users.batches.lines import Request
from app.interface.users.batches.results import Result, answered, failed
from app.interface.users.checks import caller_as
from app.interface.users.gate import AccountsGate, Meter
from app.messages.accounts import AccountsError, Identity
from app.messages.failures import EngineError
from app.messages.requests import Priority

_LONGEST_WAIT_S: Final = 60.0


class NotNowError(Exception):
    """The line is to be tried again: its service is full or away, or its user has no tokens left today."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = min(wait_s, _LONGEST_WAIT_S)


class LineAnswers:
    """Answers lines of one ingress."""

    def __init__(self, gate: AccountsGate, reception: Reception, works: Mapping[str, Work[Any]]) -> None:
        """works: the endpoints by path."""
        self._gate = gate
        self._reception = reception
        self._works = works

    async def answer(self, endpoint: str, request: Request, identity: Identity, secret: str) -> Result:
        """Returns the line's result, also of a request that is refused.

        Raises NotNowError, and AccountsError if the credential is not valid any more, or the accounts do not answer.
        """
        meter = Meter(identity, secret, in_batch=True)
        self._gate.register(meter)
        try:
            admission = await self._gate.admit(meter)
            if admission.refusal is not None:
                raise NotNowError(admission.refusal.retry_after_s or 1)
            caller = replace(caller_as(identity, secret), meter=meter, priority=Priority.BATCH)
            return await self._answered(self._works[endpoint], request, caller)
        finally:
            self._gate.unregister(meter, admitted=meter.has_begun)

    async def check_model(self, name: str | None) -> ApiError | None:
        """Returns why no line could be answered, if it is the model. Raises NotNowError while there is none at all."""
        service = self._reception.service
        for follow in (True, False):
            try:
                service.model(name or "")
            except ApiError as error:
                if error.status == 503:
                    raise NotNowError(1) from None
                if not follow:
                    return error
                await service.follow_models()
            else:
                break
        return None

    async def _answered(self, work: Work[Any], request: Request, caller: Caller) -> Result:
        request_id = f"req_{uuid.uuid4().hex}"
        try:
            body = await self._reception.whole(work, request.body, caller)
        except AccountsError as error:
            code = error.refusal.code
            if code in errors.INVALID_CREDENTIAL or code == "service_unavailable":
                raise
            return failed(request.custom_id, request_id, errors.from_refusal(error.refusal))
        except ApiError as error:
            if error.status == 503 or error.code == errors.MODEL_NOT_FOUND:  # it was served when the batch was checked
                raise NotNowError(1) from None
            return failed(request.custom_id, request_id, error)
        except Exception as error:
            failure = errors.as_api_error(error, request_id, self._reception.service.settings.retry_after_s)
            if isinstance(error, EngineError) and failure.status in (429, 503):
                raise NotNowError(float(failure.headers.get("Retry-After", 1))) from None
            return failed(request.custom_id, request_id, work.endpoint.renamed(failure))
        return answered(request.custom_id, request_id, body)
