"""`/v1/files`: users' files, for batches and of their results, and documents."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import get_args
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.responses import StreamingResponse

from app.documents.document import clean_name
from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.form import FILE, Form, read_form
from app.interface.users.batches.sealed import BatchTexts, Upload, UserFile
from app.interface.users.gate import AccountsGate
from app.interface.users.routes.listing import BEFORE, list_query
from app.interface.users.routes.users import id_of, user_of
from app.interface.wire.batches import LEAST_KEPT_S, MOST_KEPT_S, DeletedFile, ExpiresAfter, FileObject
from app.messages.accounts import AccountsError
from app.messages.batches import DOCUMENT_PURPOSES, UploadPurpose

_UPLOADED: tuple[UploadPurpose, ...] = get_args(UploadPurpose)
_PURPOSES = (*_UPLOADED, "batch_output")
_MOST_LISTED = 1000
"""OpenAI allows for 10,000; `has_more` says that there are more."""
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)


def batch_texts_of(gate: AccountsGate, request: Request) -> BatchTexts:
    """Returns the caller's files and batches. Raises ApiError (401) for a guest."""
    caller, identity = user_of(request)
    return BatchTexts(gate.batches, identity, caller.secret)


def stored_documents(gate: AccountsGate, most_bytes: int) -> Callable[[Caller, str], Awaitable[tuple[str, bytes]]]:
    """Returns what finds a caller's files for messages that refer to them."""

    async def document(caller: Caller, file_id: str) -> tuple[str, bytes]:
        assert caller.identity is not None
        return await BatchTexts(gate.batches, caller.identity, caller.secret).document(file_id, most_bytes)

    return document


class FileRoutes:
    """The routes of one ingress."""

    def __init__(self, gate: AccountsGate, batch_bytes: int, document_bytes: int) -> None:
        """batch_bytes, document_bytes: the most of a file of either purpose."""
        self._gate = gate
        self._most_bytes: Mapping[UploadPurpose, int] = {
            "batch": batch_bytes,
            **dict.fromkeys(DOCUMENT_PURPOSES, document_bytes),
        }

    async def create(self, request: Request) -> Response:
        """`POST /v1/files`: a form. Its parts are stored while it arrives; what is cut off or wrong is deleted."""
        texts = batch_texts_of(self._gate, request)
        upload = await texts.upload()
        try:
            form = await read_form(request, max(self._most_bytes.values()), upload.write)
            name, seconds, purpose = _checked(form)
            if upload.size_bytes > self._most_bytes[purpose]:
                raise errors.file_too_large(self._most_bytes[purpose])
            file = await self._gate.to_the_end(upload.finish(name, seconds, purpose))
        except (Exception, asyncio.CancelledError):
            self._gate.in_background(_dropped(texts, upload))
            raise
        return json_response(_shown(file))

    async def files(self, request: Request) -> Response:
        """`GET /v1/files`."""
        query = list_query(request, "purpose", BEFORE, most=10_000, usual=_MOST_LISTED)
        purpose = request.query_params.get("purpose")
        if purpose is not None and purpose not in _PURPOSES:
            raise errors.invalid(f"'purpose' is {', '.join(_UPLOADED)} or batch_output.", "purpose", "invalid_value")
        limit = min(query.limit, _MOST_LISTED)
        found = await batch_texts_of(self._gate, request).files(
            purpose=purpose, after=query.after, limit=limit + 1, newest_first=query.newest_first
        )
        return json_response(query.listed([_shown(one) for one in found], limit))

    async def file(self, request: Request) -> Response:
        """`GET /v1/files/{id}`."""
        return json_response(_shown(await batch_texts_of(self._gate, request).file(id_of(request))))

    async def content(self, request: Request) -> Response:
        """`GET /v1/files/{id}/content`: streamed, a part at a time."""
        texts = batch_texts_of(self._gate, request)
        file = await texts.file(id_of(request))
        pieces = texts.content(file)
        first = await anext(pieces, b"")  # what fails here is an answer of its own
        headers = {
            "Content-Length": str(file.size_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
            "Cache-Control": "no-store",
        }
        return StreamingResponse(_joined(first, pieces), headers=headers, media_type="application/octet-stream")

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/files/{id}`."""
        await batch_texts_of(self._gate, request).delete_file(id_of(request))
        return json_response(DeletedFile(id=id_of(request)).model_dump())


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def _dropped(texts: BatchTexts, upload: Upload) -> None:
    """Deletes an unfinished upload. If the accounts do not answer, they delete it themselves after hours."""
    try:
        await texts.delete_file(upload.file_id)
    except AccountsError as error:
        if error.refusal.code not in ("not_found", "service_unavailable"):
            raise


def _checked(form: Form) -> tuple[str, int | None, UploadPurpose]:
    """Returns the file's name, how long it is kept, and what for. Raises ApiError (400)."""
    if unknown := sorted(form.fields.keys() - set(_FIELDS)):
        name = unknown[0][:64]
        raise errors.invalid(f"'{name}' is not a parameter of this request.", name, "unknown_parameter")
    if form.file_name is None:
        raise errors.invalid(f"'{FILE}' is missing.", FILE, "missing_required_parameter")
    if "purpose" not in form.fields:
        raise errors.invalid("'purpose' is missing.", "purpose", "missing_required_parameter")
    purpose = next((one for one in _UPLOADED if one == form.fields["purpose"]), None)
    if purpose is None:
        message = f"'purpose' is not supported; only {' and '.join(_UPLOADED)} are."
        raise errors.invalid(message, "purpose", "unsupported_parameter")
    if _ANCHOR not in form.fields and _SECONDS not in form.fields:
        return clean_name(form.file_name), None, purpose
    seconds = form.fields.get(_SECONDS, "")
    number = int(seconds) if seconds.isascii() and seconds.isdecimal() and len(seconds) <= 9 else -1
    try:
        expires = ExpiresAfter.model_validate({"anchor": form.fields.get(_ANCHOR), "seconds": number})
    except ValidationError:
        message = f"'expires_after' has the anchor created_at, and from {LEAST_KEPT_S} to {MOST_KEPT_S} seconds."
        raise errors.invalid(message, "expires_after", "invalid_value") from None
    return clean_name(form.file_name), expires.seconds, purpose


def _shown(file: UserFile) -> dict[str, object]:
    stored = file.stored
    return FileObject(
        id=stored.id,
        bytes=file.size_bytes,
        created_at=stored.created,
        expires_at=stored.expires,
        filename=file.name,
        purpose=stored.purpose,
    ).model_dump()
