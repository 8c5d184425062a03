"""Plans a list of texts into one engine request each."""

from collections.abc import Sequence

from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.text.encoder_model import EncoderModel
from app.interface.wire.embeddings import EmbeddingRequest
from app.messages.requests import GenerateRequest, SamplingParams


def plan_embeddings(
    model: ChatModel, request: EmbeddingRequest, caller: Caller, request_id: str
) -> tuple[GenerateRequest, ...]:
    """Returns a request per input; tokenizes texts. Raises ApiError (400) naming the input."""
    if request.dimensions not in (None, model.hidden_size):
        message = f"'dimensions' is not supported; this model's vectors have {model.hidden_size}."
        raise errors.invalid(message, "dimensions", "unsupported_parameter")
    if request.input_type is not None:
        message = "'input_type' is for encoders: this model has no prompts for queries and documents."
        raise errors.invalid(message, "input_type", "unsupported_parameter")
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


def plan_texts(model: EncoderModel, request: EmbeddingRequest) -> list[list[int]]:
    """Returns the tokens of each input for an encoder. Raises ApiError (400) naming the input."""
    if model.scores:
        raise errors.invalid("This model is a reranker: it makes no vectors. Use /v1/rerank or /v1/score.", "model")
    if request.pooling is not None:
        raise errors.invalid(
            "'pooling' is for chat models: an encoder has its own.", "pooling", "unsupported_parameter"
        )
    model.check_dimensions(request.dimensions)
    texts = []
    for i, given in enumerate(request.inputs):
        if isinstance(given, str):
            texts.append(model.tokens(given, request.kind))
            continue
        field = f"input[{i}]" if len(request.inputs) > 1 else "input"
        if (highest := max(given, default=0)) >= model.vocab_size:
            message = f"'{field}': token {highest} is not in the vocabulary of {model.vocab_size} tokens."
            raise errors.invalid(message, field, "invalid_value")
        texts.append(model.framed(given))
    return texts


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
