"""The record of one request for the access log: ids, counts and times, without texts.

The middleware of `app.interface.http.watched_requests` creates it and reads it at the end; routes fill it in.
"""

from dataclasses import dataclass, field
from time import perf_counter

from fastapi import Request

from app.interface.request.errors import ApiError
from app.interface.request.observers import Observer
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest


@dataclass(slots=True)
class RequestRecord:
    """The record of one request. For one event loop."""

    is_logged: bool = False
    """Whether the record is read: otherwise tokens are not counted."""
    began_s: float = field(default_factory=perf_counter)
    answer_id: str | None = None
    """The request's id in the answer and at the worker."""
    model: str | None = None
    is_stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    """Seconds since `began_s`."""
    finish_reason: str | None = None
    """The reason of the sequence that ended last."""
    resumed: int = 0
    """How often a sequence continued on another worker."""
    error: str | None = None
    """The code of the failure that the client was told."""

    def note_model(self, model: str, prompt_tokens: int) -> None:
        """Notes the model that is asked. prompt_tokens: each prompt counted once."""
        self.model, self.prompt_tokens = model, prompt_tokens

    def failed(self, error: ApiError) -> None:
        """Notes the failure that the client is told."""
        self.error = error.code or error.type

    def observer(self, request: GenerateRequest) -> Observer:
        """Notes a sequence's tokens and end."""
        has_ended = False

        def saw(delta: TokenDelta) -> None:
            nonlocal has_ended
            self._note(delta)
            has_ended = delta.finish_reason is not None

        def ended(error: BaseException | None) -> None:
            if error is None and not has_ended:  # a stop string or the end of the only call has cut it
                self.finish_reason = "stop"

        return Observer(saw, ended)

    def _note(self, delta: TokenDelta) -> None:
        self.resumed += len(delta.losses)
        self.cached_tokens = min(self.cached_tokens + delta.cached_tokens, self.prompt_tokens)
        if delta.token_ids:
            self.completion_tokens += len(delta.token_ids) + sum(len(answer.token_ids) for answer in delta.more)
            if self.first_token_s is None:
                self.first_token_s = perf_counter() - self.began_s
        self.finish_reason = delta.finish_reason or self.finish_reason


def record_of(request: Request) -> RequestRecord:
    """Returns the request's record, or a dummy if no middleware has made one."""
    record = getattr(request.state, "record", None)
    return record if isinstance(record, RequestRecord) else RequestRecord()
