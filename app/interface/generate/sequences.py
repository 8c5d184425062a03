"""Generates sequences for one request: lists all observers, and adds the caller's permissions.

It knows neither plans nor answers.
"""

from app.interface.generate.service import Service
from app.interface.request.callers import Caller
from app.interface.request.observers import Observe, Observed
from app.interface.request.record import RequestRecord
from app.messages.outputs import Generate


def sequences(
    service: Service,
    generate: Generate,
    caller: Caller,
    model: str,
    prompt_tokens: int,
    *,
    record: RequestRecord | None = None,
    stored: Observe | None = None,
    conversation: str | None = None,
    shared_tokens: int | None = None,
) -> Observed:
    """Wraps a served model's `generate` for one request of a caller.

    prompt_tokens: of the request, each prompt counted once. record: notes tokens for the access log. stored: collects
    the answer's tokens. conversation: the user's conversation whose saved KV pages are used; None: the default one.
    shared_tokens: of system prompt, tools and files at the beginning of each prompt; None: no saved KV pages are used.
    """
    meter = caller.meter
    observers = (
        service.counting(model),
        stored,
        None if record is None or not record.is_logged else record.observer,
        None if meter is None else meter.observer,
    )
    permit = None if shared_tokens is None else caller.permit(conversation, shared_tokens)
    looking = [observe for observe in observers if observe is not None]
    if meter is None:
        return Observed(generate, looking, permit)
    meter.note_model(model, prompt_tokens)
    return Observed(generate, looking, permit, meter.cancellable)
