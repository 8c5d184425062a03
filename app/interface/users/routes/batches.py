"""`/v1/batches`: users' batches. `app.interface.users.batches` runs them."""

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.http.guard import json_response
from app.interface.users.batches.runner import BatchRunner
from app.interface.users.batches.sealed import Batch
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.files import batch_texts_of
from app.interface.users.routes.listing import list_query, listed
from app.interface.users.routes.users import body_of, id_of
from app.interface.wire.batches import BatchObject, BatchRequest

_WINDOW = "24h"
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class BatchRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate, runner: BatchRunner) -> None:
        self._gate = gate
        self._runner = runner

    async def create(self, request: Request) -> Response:
        """`POST /v1/batches`."""
        body = await body_of(request, BatchRequest)
        asked = {"endpoint": body.endpoint, "metadata": body.metadata}
        kept = None if body.output_expires_after is None else body.output_expires_after.seconds
        beginning = batch_texts_of(self._gate, request).new(body.input_file_id, asked, kept)
        batch = await self._gate.to_the_end(beginning)
        self._runner.look()
        return json_response(_shown(batch))

    async def batches(self, request: Request) -> Response:
        """`GET /v1/batches`, newest first."""
        query = list_query(request)
        found = await batch_texts_of(self._gate, request).newest(query.after, query.limit + 1)
        return json_response(listed([_shown(one) for one in found], query.limit))

    async def batch(self, request: Request) -> Response:
        """`GET /v1/batches/{id}`."""
        return json_response(_shown(await batch_texts_of(self._gate, request).get(id_of(request))))

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/batches/{id}/cancel`."""
        batch = await batch_texts_of(self._gate, request).cancel(id_of(request))
        self._runner.look(batch.stored.id)
        return json_response(_shown(batch))


def _shown(batch: Batch) -> dict[str, Any]:
    stored, asked = batch.stored, batch.asked
    shown = {
        "id": stored.id,
        "endpoint": asked["endpoint"],
        "errors": {"data": asked["errors"]} if asked.get("errors") else None,
        "input_file_id": stored.input_id,
        "completion_window": _WINDOW,
        "status": stored.state,
        "output_file_id": stored.output_id if stored.has_output else None,
        "error_file_id": stored.error_id if stored.has_errors else None,
        "created_at": stored.created,
        "expires_at": stored.expires,
        "request_counts": {"total": stored.total, "completed": stored.completed, "failed": stored.failed},
        "metadata": asked["metadata"],
        "model": asked.get("model"),
        **{f"{state}_at": stored.times.get(state) for state in _TIMES},
    }
    return BatchObject.model_validate(shown).model_dump()
