"""`/v1/documents` and `/v1/files/{id}/document`: what a model would see of a file, and its costs. Nothing is kept."""

from fastapi import Request
from fastapi.responses import Response

from app.documents.document import Document, framed
from app.interface.generate.reception import Reception
from app.interface.http.guard import json_response
from app.interface.request import errors
from app.interface.request.callers import caller_of
from app.interface.request.form import FILE, read_form
from app.interface.wire.attached import DocumentObject
from app.messages.workers import WorkerRow

_MOST_AT_ONCE = 8
"""Files that are being received: each is in memory."""
_RETRY_AFTER_S = 5
_REST_SHARE = 8


class AttachedRoutes:
    """The routes of one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._receiving = 0

    async def document(self, request: Request) -> Response:
        """`POST /v1/documents`: a form."""
        if self._receiving >= _MOST_AT_ONCE:
            raise errors.unavailable(_RETRY_AFTER_S, "Too many files are being read. Try again soon.")
        self._receiving += 1
        try:
            content = bytearray()

            async def write(piece: bytes) -> None:
                content.extend(piece)

            form = await read_form(request, self._reception.service.settings.document_bytes, write)
            if form.file_name is None:
                raise errors.invalid(f"'{FILE}' is missing.", FILE, "missing_required_parameter")
            if unknown := sorted(form.fields.keys() - {"model"}):
                name = unknown[0][:64]
                raise errors.invalid(f"'{name}' is not a parameter of this request.", name, "unknown_parameter")
            name = form.file_name

            async def received() -> tuple[str, bytes]:
                return name, bytes(content)

            document = await self._reception.files.read(received, FILE, caller_of(request))
        finally:
            self._receiving -= 1
        return await self._shown(document, form.fields.get("model", ""))

    async def stored(self, request: Request) -> Response:
        """`GET /v1/files/{id}/document`."""
        files, caller, file_id = self._reception.files, caller_of(request), request.path_params["id"]
        document = await files.read(lambda: files.stored(caller, file_id, "id"), "id", caller)
        return await self._shown(document, request.query_params.get("model", ""))

    async def _shown(self, document: Document, model: str) -> Response:
        service = self._reception.service
        name, served = service.name_of(model), service.model(model)
        text = document.text
        asked = framed(document.name, text)
        tokens = await self._reception.in_thread(lambda: served.chat.question_tokens(asked)) if text else 0
        context_tokens = served.chat.context_tokens
        workers = [row for row in service.workers() if name in row.model_names and row.check_heart_beat]
        expected = min((s for row in workers if (s := expected_s(row, tokens)) is not None), default=(None, None))
        shown = DocumentObject(
            filename=document.name,
            kind=document.kind,
            pages=document.pages,
            notes=list(document.notes),
            text=text,
            tokens=tokens,
            context_tokens=context_tokens,
            fits=tokens <= context_tokens - context_tokens // _REST_SHARE,
            expected_s=expected[0],
            attention_s=expected[1],
        )
        return json_response(shown.model_dump(), headers={"Cache-Control": "no-store"})


def expected_s(worker: WorkerRow, tokens: int) -> tuple[float, float] | None:
    """Returns how long an idle worker computes a prompt, and what of it is attention's; None: it was not measured.

    By the prompt of its warm-up: the time of a token is that of the weights and that of attention, which grows with the
    tokens before it.
    """
    measured = worker.capacity
    if measured is None or not measured.prompt_tokens:
        return None
    attention = measured.layers * measured.heads * measured.head_dim * tokens / max(1, measured.layer_weights)
    weights_s = tokens * measured.prompt_s / measured.prompt_tokens
    return round(weights_s * (1 + attention), 2), round(weights_s * attention, 2)
