"""Plans a list of texts into one engine request each."""

from collections.abc import Sequence

from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.wire.embeddings import EmbeddingRequest
from app.messages.requests import GenerateRequest, SamplingParams


def plan_embeddings(
    model: ChatModel, request: EmbeddingRequest, caller: Caller, request_id: str
) -> tuple[GenerateRequest, ...]:
    """Returns a request per input; tokenizes texts. Raises ApiError (400) naming the input."""
    if request.dimensions not in (None, model.hidden_size):
        message = f"'dimensions' is not supported; this model's vectors have {model.hidden_size}."
        raise errors.invalid(message, "dimensions", "unsupported_parameter")
    inputs = request.inputs
    return tuple(
        GenerateRequest(
            request_id=f"{request_id}-{i}",
            prompt_token_ids=tuple(_token_ids(model, given, f"input[{i}]" if len(inputs) > 1 else "input")),
            max_new_tokens=0,
            model_identity=model.identity,
            sampling=SamplingParams(temperature=0.0),
            tenant=caller.tenant,
            client=caller.client,
            priority=caller.priority,
            pooling=request.pooling or "mean",
        )
        for i, given in enumerate(inputs)
    )


def _token_ids(model: ChatModel, given: str | Sequence[int], field: str) -> Sequence[int]:
    if isinstance(given, str):
        token_ids: Sequence[int] = model.raw_prompt(given, field)
    else:
        token_ids = given
        model.check_vocabulary(token_ids, field)
    if not token_ids:
        raise errors.invalid(f"'{field}' is empty, and this model has no token to start from.", field)
    if len(token_ids) > model.context_tokens:
        raise errors.context_length_exceeded(len(token_ids), 0, model.context_tokens, field)
    return token_ids
