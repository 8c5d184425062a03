"""From a list of texts to a request to the engine for each."""

from collections.abc import Sequence
from typing import Literal

from app.interface import errors
from app.interface.text.chat_model import ChatModel
from app.messages.requests import GenerateRequest, SamplingParams


def plan_embeddings(
    model: ChatModel,
    inputs: Sequence[str | Sequence[int]],
    pooling: Literal["mean", "last"],
    request_id: str,
) -> tuple[GenerateRequest, ...]:
    """A request for each input; tokenizes those that are text. Raises ApiError (400) naming the input."""
    requests = []
    for i, given in enumerate(inputs):
        field = f"input[{i}]" if len(inputs) > 1 else "input"
        if isinstance(given, str):
            token_ids: Sequence[int] = model.raw_prompt(given, field)
        else:
            token_ids = given
            model.check_vocabulary(token_ids, field)
        if not token_ids:
            raise errors.invalid(f"'{field}' is empty, and this model has no token to start from.", field)
        if len(token_ids) > model.context_tokens:
            raise errors.context_length_exceeded(len(token_ids), 0, model.context_tokens, field)
        requests.append(
            GenerateRequest(
                request_id=f"{request_id}-{i}",
                prompt_token_ids=tuple(token_ids),
                max_new_tokens=0,
                sampling=SamplingParams(temperature=0.0),
                pooling=pooling,
            )
        )
    return tuple(requests)
