"""What is noted of one request while it is answered, for the access log: ids, counts and times, and never a text.

The middleware of `app.interface.http.watched_requests` makes the record and reads it at the end. Routes only fill it
in.
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
    """One request's. For one event loop."""

    is_logged: bool = False
    """Whether anybody reads it: otherwise tokens are not looked at."""
    began_s: float = field(default_factory=perf_counter)
    answer_id: str | None = None
    """How the answer and its worker name the request."""
    model: str | None = None
    is_stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    """Since `began_s`."""
    finish_reason: str | None = None
    """Of the sequence that ended last."""
    resumed: int = 0
    """How often a sequence has gone on with another worker."""
    error: str | None = None
    """The code of the failure that the client was told."""

    def asks(self, model: str, prompt_tokens: int) -> None:
        """A worker is asked. prompt_tokens: each prompt counted once."""
        self.model, self.prompt_tokens = model, prompt_tokens

    def failed(self, error: ApiError) -> None:
        """The client is told of a failure."""
        self.error = error.code or error.type

    def observer(self, request: GenerateRequest) -> Observer:
        """Notes what a sequence makes."""
        has_ended = False

        def saw(delta: TokenDelta) -> None:
            nonlocal has_ended
            self._note(delta)
            has_ended = delta.finish_reason is not None

        def ended(error: BaseException | None) -> None:
            # By a stop string; or the client has gone, and the middleware knows that.
            if isinstance(error, GeneratorExit) and not has_ended:
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
    """The request's record; one that nobody reads, if no middleware has made one."""
    record = getattr(request.state, "record", None)
    return record if isinstance(record, RequestRecord) else RequestRecord()
