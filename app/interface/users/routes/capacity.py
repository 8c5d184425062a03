"""`/v1/admin/capacity`: how many users the workers can serve, as measured, and which machines would serve more.

The calculation runs in a separate process, one at a time. Knows what workers report, not how capacity is computed.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.service import Service
from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.callers import caller_of
from app.interface.users.checks import refuse_others
from app.interface.users.gate import AccountsGate
from app.interface.wire.operator import CapacityList, CapacityObject
from app.messages.workers import WorkerRow

_MOST_USERS: Final = 1_000_000
_TIMEOUT_S: Final = 120.0
_RETRY_AFTER_S: Final = 60
_COMMAND: Final = (sys.executable, "-m", "app.capacity")
_TOO_BUSY: Final = "The machine is too busy to compute this; use `redoubt plan`."
_FAILED: Final = "The calculation failed, and the ingress' log says why; use `redoubt plan`."

logger = logging.getLogger(__name__)


class CapacityRoutes:
    """The route of one ingress."""

    def __init__(self, service: Service, gate: AccountsGate) -> None:
        """gate: authenticates the caller."""
        self._service = service
        self._accounts = gate.accounts
        self._turn = asyncio.Lock()

    async def capacity(self, request: Request) -> Response:
        """`GET /v1/admin/capacity`."""
        refuse_others(await self._accounts.identify(caller_of(request).secret))
        users = _users(request)
        rows = [row for row in self._service.workers() if row.check_heart_beat and row.capacity is not None]
        models = [
            _question(name, rows) for name in self._service.models if any(name in row.model_names for row in rows)
        ]
        async with self._turn:
            answers = await _computed({"models": models, "users": users}) if models else []
        body = CapacityList(users=users, data=[CapacityObject(**each) for each in answers])
        return json_response(body.model_dump(), headers={"Cache-Control": "no-store"})


def _users(request: Request) -> int:
    text = request.query_params.get("users", "10")
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and 1 <= int(text) <= _MOST_USERS):
        raise errors.invalid(f"'users' is no whole number from 1 to {_MOST_USERS}.", "users", "invalid_value")
    return int(text)


def _question(name: str, rows: Sequence[WorkerRow]) -> dict[str, Any]:
    """Returns one model's workers, with the measurement of the slowest."""
    own = [row for row in rows if name in row.model_names]
    slowest = min(own, key=lambda row: row.speed)
    assert slowest.capacity is not None
    return {
        "name": name,
        "workers": len(own),
        "tier": slowest.tier,
        "cores": max(1, len(slowest.cpus)),
        "max_running": slowest.max_running,
        "context_tokens": slowest.max_context_tokens,
        "workers_there": sum(row.node == slowest.node for row in rows),
        "model": slowest.capacity.to_wire(),
    }


async def _computed(
    question: dict[str, Any], command: Sequence[str] = _COMMAND, timeout_s: float = _TIMEOUT_S
) -> list[dict[str, Any]]:
    """Runs the calculation in a child process, which never outlives this call. Raises ApiError (503) on failure."""
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, complaints = await child.communicate(json.dumps(question).encode())
    except TimeoutError as error:
        logger.warning("the calculation of the capacity took more than %g s", timeout_s)
        raise errors.unavailable(_RETRY_AFTER_S, _TOO_BUSY) from error
    finally:  # also if the request is cancelled
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        logger.error("the calculation of the capacity failed: %s", complaints.decode(errors="replace").strip())
        raise errors.unavailable(_RETRY_AFTER_S, _FAILED)
    answers: list[dict[str, Any]] = json.loads(output)
    return answers
