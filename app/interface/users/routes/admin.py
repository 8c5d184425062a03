"""`/v1/admin`: users, usage and audit, for administrators. No texts are visible here."""

import datetime
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.callers import caller_of
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.users import body_of, limits_object
from app.interface.wire.accounts import (
    AuditList,
    AuditObject,
    Done,
    LimitsRequest,
    ResetRequest,
    UsageList,
    UsageObject,
    UserChangeRequest,
    UserList,
    UserObject,
    UserRequest,
)
from app.messages.accounts import UserChange, UserInfo, UserLimits

MOST_AUDIT_ROWS = 1000


class AdminRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate) -> None:
        self._accounts = gate.accounts
        self._gate = gate

    async def users(self, request: Request) -> Response:
        """`GET /v1/admin/users`."""
        users = await self._accounts.users(caller_of(request).secret)
        return json_response(UserList(data=[UserObject(**_user(user)) for user in users]).model_dump())

    async def add_user(self, request: Request) -> Response:
        """`POST /v1/admin/users`."""
        body = await body_of(request, UserRequest)
        new = await self._accounts.add_user(
            caller_of(request).secret, body.name, body.password, body.role or "user", _limits(body.limits)
        )
        return json_response(UserObject(**_user(new)).model_dump())

    async def change_user(self, request: Request, name: str) -> Response:
        """`POST /v1/admin/users/{name}`."""
        body = await body_of(request, UserChangeRequest)
        limits = None if body.limits is None else _limits(body.limits)
        change = UserChange(body.role, body.state, limits)
        user = await self._accounts.change_user(caller_of(request).secret, name, change)
        return json_response(UserObject(**_user(user)).model_dump())

    async def delete_user(self, request: Request, name: str) -> Response:
        """`DELETE /v1/admin/users/{name}`."""
        await self._gate.to_the_end(self._delete(caller_of(request).secret, name))
        return json_response(Done().model_dump())

    async def reset_user(self, request: Request, name: str) -> Response:
        """`POST /v1/admin/users/{name}/reset`."""
        body = await body_of(request, ResetRequest)
        user = await self._accounts.reset_password(caller_of(request).secret, name, body.password)
        return json_response(UserObject(**_user(user)).model_dump())

    async def _delete(self, secret: str, name: str) -> None:
        """Deletes a user; workers then remove KV pages that nobody can open. Missed ones go by their lifetime."""
        owner = await self._accounts.delete_user(secret, name)
        if self._gate.kv_pages is not None:
            forgotten = await self._gate.kv_pages.forget(owner, None)
            if forgotten.unacknowledged:
                errors.logger.warning("%d workers did not remove a user's saved pages", forgotten.unacknowledged)

    async def usage(self, request: Request) -> Response:
        """`GET /v1/admin/usage`."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        first, last = _day(request, "first", today), _day(request, "last", today)
        rows = await self._accounts.usage(caller_of(request).secret, first, last)
        data = [
            UsageObject(
                user_id=row.user_id,
                credential=row.credential,
                day=row.day,
                model=row.model,
                requests=row.requests,
                prompt_tokens=row.prompt,
                cached_tokens=row.cached,
                output_tokens=row.output,
            )
            for row in rows
        ]
        return json_response(UsageList(data=data).model_dump())

    async def audit(self, request: Request) -> Response:
        """`GET /v1/admin/audit`."""
        after, limit = _count(request, "after", 0), min(_count(request, "limit", 100), MOST_AUDIT_ROWS)
        audit = await self._accounts.audit(caller_of(request).secret, after, limit)
        data = [
            AuditObject(
                seq=row.seq,
                at=row.at,
                actor=row.actor,
                action=row.action,
                object=row.object,
                outcome=row.outcome,
                address=row.address,
            )
            for row in audit.rows
        ]
        return json_response(AuditList(data=data, intact=audit.intact, last=audit.last).model_dump())


def _limits(body: LimitsRequest | None) -> UserLimits:
    return UserLimits() if body is None else UserLimits(**body.model_dump())


def _user(user: UserInfo) -> dict[str, Any]:
    return {
        "id": user.id,
        "name": user.name,
        "role": user.role,
        "state": user.state,
        "created_at": user.created,
        "limits": limits_object(user.limits),
        "first_password_expires_at": user.first_password_expires,
    }


def _day(request: Request, name: str, default: str) -> str:
    text = request.query_params.get(name, default)
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise errors.invalid(f"'{name}' is no date such as {default}.", name, "invalid_value") from None


def _count(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise errors.invalid(f"'{name}' is no whole number such as {default}.", name, "invalid_value")
    return int(text)
