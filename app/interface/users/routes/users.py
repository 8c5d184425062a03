"""`/v1/auth` and `/v1/keys`: what users do with their own account."""

import time
from dataclasses import asdict
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.body import read_body
from app.interface.request.callers import Caller, caller_of
from app.interface.request.client_address import known_address
from app.interface.users.checks import SESSION_COOKIE, has_own_origin
from app.interface.users.devices import device_of
from app.interface.users.gate import AccountsGate
from app.interface.users.kv_pages import AllSaved
from app.interface.users.texts import Texts
from app.interface.wire.accounts import (
    Done,
    EndedSessions,
    KeyList,
    KeyObject,
    KeyRequest,
    LimitsObject,
    LoginRequest,
    LogoutRequest,
    NewKeyObject,
    NewSession,
    PasswordChanged,
    PasswordRequest,
    RecoveryCode,
    RecoveryRequest,
    SessionList,
    SessionObject,
    UsedLimit,
    UsedLimits,
    UserSession,
)
from app.interface.wire.parse import Request as Body
from app.interface.wire.parse import parse
from app.messages.accounts import AccountsError, ChangedPassword, Identity, KeyInfo, UserLimits

MAX_BODY_BYTES = 64 << 10


async def body_of(request: Request, kind: type[Body], most_bytes: int = MAX_BODY_BYTES) -> Body:
    """Reads and validates the body. Raises ApiError (400, 413, 415)."""
    return parse(kind, await read_body(request, most_bytes))


def id_of(request: Request) -> str:
    """Returns the id in the path."""
    return str(request.path_params["id"])


def user_of(request: Request) -> tuple[Caller, Identity]:
    """Returns the caller and its user. Raises ApiError (401) for a guest."""
    caller = caller_of(request)
    if caller.identity is None:
        raise errors.unauthorized()
    return caller, caller.identity


def texts_of(gate: AccountsGate, request: Request) -> Texts:
    """Returns the caller's stored texts. Raises ApiError (401) for a guest."""
    caller, identity = user_of(request)
    return Texts(gate.stored, identity, caller.secret)


class UserRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate) -> None:
        self._gate = gate
        self._accounts = gate.accounts

    async def login(self, request: Request) -> Response:
        """`POST /v1/auth/login`."""
        body = await body_of(request, LoginRequest)
        device = device_of(request.headers.get("user-agent", ""))
        session = await self._accounts.login(body.name, body.password, known_address(request), device)
        replaced = request.cookies.get(SESSION_COOKIE)
        if body.cookie and replaced is not None and has_own_origin(request):
            await self._gate.to_the_end(self._end_replaced(replaced, session.identity))
        token = None if body.cookie else session.token
        response = json_response(NewSession(**_session(session.identity), token=token).model_dump())
        response.headers["Cache-Control"] = "no-store"
        if body.cookie:
            response.set_cookie(
                SESSION_COOKIE,
                session.token,
                max_age=int((session.identity.expires or time.time()) - time.time()),
                secure=request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https",
                httponly=True,
                samesite="strict",
            )
        return response

    async def _end_replaced(self, secret: str, identity: Identity) -> None:
        """Ends the browser's former session; if the same user logs in again, KV pages stay in memory.

        An invalid cookie is only replaced. So is one that the accounts do not answer for, which is logged: that must
        not keep the user from logging in.
        """
        try:
            former = await self._accounts.identify(secret)
            if former.user_id == identity.user_id:
                await self._accounts.logout(secret, everywhere=False)
                self._gate.forget(former)
            else:
                await self._log_out(secret, former, everywhere=False)
        except AccountsError as error:
            if error.refusal.code not in (*errors.INVALID_CREDENTIAL, "invalid_value"):
                errors.logger.warning("the session that a login replaced has not ended: %s", error.refusal.code)

    async def logout(self, request: Request) -> Response:
        """`POST /v1/auth/logout`."""
        body = await body_of(request, LogoutRequest)
        caller, identity = user_of(request)
        leaving = self._log_out(caller.secret, identity, everywhere=bool(body.everywhere))
        response = json_response((await self._gate.to_the_end(leaving)).model_dump())
        response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
        return response

    async def _log_out(self, secret: str, identity: Identity, *, everywhere: bool) -> EndedSessions:
        ended = await self._accounts.logout(secret, everywhere=everywhere)
        self._gate.forget(identity)
        kv_pages = self._gate.kv_pages
        saved = AllSaved() if kv_pages is None else await kv_pages.clear(identity.pages.owner)
        return EndedSessions(sessions=ended, **asdict(saved))

    async def session(self, request: Request) -> Response:
        """`GET /v1/auth/session`."""
        _, identity = user_of(request)
        return json_response(UserSession(**_session(identity)).model_dump())

    async def limits(self, request: Request) -> Response:
        """`GET /v1/auth/limits`."""
        caller, identity = user_of(request)
        used = await self._accounts.limits_used(caller.secret)
        answer = UsedLimits(
            requests_per_minute=UsedLimit(limit=identity.limits.requests_per_minute, used=used.requests_of_minute),
            tokens_per_day=UsedLimit(limit=identity.limits.tokens_per_day, used=used.tokens_of_day),
            concurrent=UsedLimit(limit=identity.limits.concurrent, used=used.running),
            stored_bytes=UsedLimit(limit=used.most_stored_bytes, used=used.stored_bytes),
        )
        return json_response(answer.model_dump())

    async def sessions(self, request: Request) -> Response:
        """`GET /v1/auth/sessions`."""
        caller, _ = user_of(request)
        data = [
            SessionObject(
                id=each.id,
                created_at=each.created,
                seen_at=each.seen,
                expires_at=each.expires,
                current=each.is_current,
                device=each.device,
            )
            for each in await self._accounts.sessions(caller.secret)
        ]
        return json_response(SessionList(data=data).model_dump())

    async def end_session(self, request: Request, id: str) -> Response:  # noqa: A002  # the path's variable
        """`DELETE /v1/auth/sessions/{id}`."""
        caller, identity = user_of(request)
        await self._accounts.end_session(caller.secret, id)
        self._gate.forget(identity)
        return json_response(Done().model_dump())

    async def password(self, request: Request) -> Response:
        """`POST /v1/auth/password`."""
        body = await body_of(request, PasswordRequest)
        caller, identity = user_of(request)
        changed = await self._gate.to_the_end(self._change_password(caller.secret, identity, body))
        answer = PasswordChanged(recovery_code=changed.recovery_code, memory_lost=changed.memory_lost)
        return json_response(answer.model_dump(), headers={"Cache-Control": "no-store"})

    async def _change_password(self, secret: str, identity: Identity, body: PasswordRequest) -> ChangedPassword:
        changed = await self._accounts.change_password(
            secret, body.password, body.new_password, body.recovery_code, bool(body.lose_saved)
        )
        self._gate.forget(identity)
        if changed.lost_folder is not None and self._gate.kv_pages is not None:
            await self._gate.kv_pages.forget(changed.lost_folder, None)
        return changed

    async def recovery(self, request: Request) -> Response:
        """`POST /v1/auth/recovery`."""
        body = await body_of(request, RecoveryRequest)
        caller, _ = user_of(request)
        code = await self._accounts.new_recovery_code(caller.secret, body.password)
        return json_response(RecoveryCode(recovery_code=code).model_dump(), headers={"Cache-Control": "no-store"})

    async def keys(self, request: Request) -> Response:
        """`GET /v1/keys`."""
        caller, _ = user_of(request)
        keys = await self._accounts.keys(caller.secret)
        return json_response(KeyList(data=[KeyObject(**_key(key)) for key in keys]).model_dump())

    async def add_key(self, request: Request) -> Response:
        """`POST /v1/keys`."""
        body = await body_of(request, KeyRequest)
        caller, _ = user_of(request)
        key = await self._accounts.add_key(caller.secret, body.label or "", body.expires_in_days)
        answer = json_response(NewKeyObject(**_key(key.info), secret=key.secret).model_dump())
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def revoke_key(self, request: Request, id: str) -> Response:  # noqa: A002  # the path's variable
        """`DELETE /v1/keys/{id}`."""
        caller, _ = user_of(request)
        await self._accounts.revoke_key(caller.secret, id)
        return json_response(Done().model_dump())


def limits_object(limits: UserLimits) -> LimitsObject:
    """Converts limits for a response."""
    return LimitsObject(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_day=limits.tokens_per_day,
        concurrent=limits.concurrent,
        memory_bytes=limits.memory_bytes,
    )


def _session(identity: Identity) -> dict[str, Any]:
    return {
        "user_id": identity.user_id,
        "name": identity.name,
        "role": identity.role,
        "kind": identity.kind,
        "expires_at": None if identity.expires is None else int(identity.expires),
        "limits": limits_object(identity.limits),
        "must_choose_password": identity.must_choose_password,
        "can_recover": identity.can_recover,
    }


def _key(info: KeyInfo) -> dict[str, Any]:
    return {"id": info.id, "label": info.label, "created_at": info.created, "expires_at": info.expires}
