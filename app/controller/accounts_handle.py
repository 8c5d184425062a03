"""Calls the single replica of `app.accounts.shared.SharedAccounts`. Knows none of its methods."""

import asyncio
from typing import Any, TypeVar, cast

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from app.messages.accounts import AccountsError, Refusal

_TIMEOUT_S = 30.0
"""Long enough for queued logins, or for a replica that is being replaced."""
_GONE = (
    ActorDiedError,
    ActorUnavailableError,
    BackPressureError,
    DeploymentUnavailableError,
    RequestCancelledError,
    TimeoutError,
)

Result = TypeVar("Result")


class AccountsHandle:
    """A Serve handle that turns Refusals and failures into AccountsErrors."""

    def __init__(self, handle: DeploymentHandle[Any], ingress: str) -> None:
        """ingress: the unique name of this ingress."""
        self._handle = handle
        self._ingress = ingress

    async def _call(self, kind: type[Result], method: str, *arguments: Any) -> Result:
        """Calls a method. Raises AccountsError. kind: the result's type, for the type checker."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._handle.call.remote(method, *arguments)
        except _GONE as error:
            raise AccountsError("service_unavailable", "The accounts do not answer. Try again later.") from error
        if isinstance(answer, Refusal):
            raise AccountsError.of(answer)
        return cast(Result, answer)
