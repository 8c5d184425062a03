"""`/v1/admin/overview` and `/v1/admin/usage/users`: the state of the service for its operator, without texts."""

import time
from collections.abc import Sequence

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.service import Service
from app.interface.http.guard import json_response
from app.interface.http.places import Places
from app.interface.request.callers import caller_of
from app.interface.request.recent_failures import RecentFailures
from app.interface.users.checks import refuse_others
from app.interface.users.gate import AccountsGate
from app.interface.wire.operator import (
    IngressObject,
    ModelOverview,
    Overview,
    UsageCountsObject,
    UserUsageList,
    UserUsageObject,
)
from app.messages.accounts import UsageCounts, UserUsage
from app.messages.workers import WorkerRow

_NOTHING = UsageCounts(0, 0, 0, 0)


class OperatorRoutes:
    """The routes of one ingress."""

    def __init__(self, service: Service, gate: AccountsGate, places: Places, failures: RecentFailures) -> None:
        """places: those of the ingress's open requests. failures: the ingress's."""
        self._service = service
        self._accounts = gate.accounts
        self._places = places
        self._failures = failures

    async def overview(self, request: Request) -> Response:
        """`GET /v1/admin/overview`."""
        # Identities are cached here for some seconds; as on all routes, the accounts decide.
        refuse_others(await self._accounts.identify(caller_of(request).secret))
        facts, rows = self._service.ingress, list(self._service.workers())
        overview = Overview(
            at=time.time(),
            ingress=IngressObject(
                id=facts.id,
                node=facts.node,
                replicas=facts.replicas,
                version=facts.version,
                up_since=facts.up_since,
                open_requests=self._places.taken,
                max_open_requests=self._places.limit,
            ),
            models=[self._model(name, rows) for name in self._service.models],
            workers=rows,
            failures=list(self._failures.newest_first()),
        )
        return json_response(overview.model_dump(), headers={"Cache-Control": "no-store"})

    def _model(self, name: str, rows: Sequence[WorkerRow]) -> ModelOverview:
        alive = [row for row in rows if name in row.model_names and row.check_heart_beat]
        return ModelOverview(
            id=name,
            max_context_tokens=self._service.model(name).text.context_tokens,
            workers=len(alive),
            running=sum(row.running for row in alive),
            waiting=sum(row.waiting for row in alive),
        )

    async def usage(self, request: Request) -> Response:
        """`GET /v1/admin/usage/users`."""
        secret = caller_of(request).secret
        taken = {row.user_id: row for row in await self._accounts.usage_by_user(secret)}
        names = {user.id: user.name for user in await self._accounts.users(secret)}
        ids = [*names, *(user_id for user_id in taken if user_id not in names)]
        nothing = {user_id: UserUsage(user_id, _NOTHING, _NOTHING, _NOTHING) for user_id in ids}
        data = [_usage(row, names.get(user_id)) for user_id, row in (nothing | taken).items()]
        return json_response(UserUsageList(data=data).model_dump(), headers={"Cache-Control": "no-store"})


def _usage(row: UserUsage, name: str | None) -> UserUsageObject:
    return UserUsageObject(
        user_id=row.user_id,
        name=name,
        today=_counts(row.today),
        days_7=_counts(row.days_7),
        days_30=_counts(row.days_30),
    )


def _counts(counts: UsageCounts) -> UsageCountsObject:
    return UsageCountsObject(
        requests=counts.requests,
        prompt_tokens=counts.prompt,
        cached_tokens=counts.cached,
        output_tokens=counts.output,
    )
