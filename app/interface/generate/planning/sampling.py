"""Converts a request's sampling fields to the engine's parameters. Knows no prompt."""

from app.interface.request import errors
from app.interface.text.chat_model import ChatModel
from app.interface.wire.generation import GenerationRequest
from app.messages.requests import SamplingParams

_LEAST_TOP_P = 1e-30
"""Above 0 as float32."""
_MOST_MIN_P = 0.999999


def sampling_params(
    model: ChatModel,
    request: GenerationRequest,
    choice: int,
    *,
    scores: int | None,
    end_token_ids: frozenset[int],
) -> SamplingParams:
    """Returns the parameters of one choice.

    scores: the number of top tokens to score at each position; None: no scores. end_token_ids: tokens that `min_tokens`
    suppresses. Raises ApiError (400) for a biased token outside the vocabulary, and for a `do_sample` that contradicts
    the temperature.
    """

    def given(value: float | None, default: float) -> float:
        return default if value is None else float(value)

    defaults = model.sampling
    biases = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    model.check_vocabulary(biases, "logit_bias")
    min_new_tokens = request.min_tokens or 0
    top_p, min_p = given(request.top_p, defaults.top_p), given(request.min_p, defaults.min_p)
    temperature = _temperature(request, defaults.temperature)
    if top_p < _LEAST_TOP_P or min_p > _MOST_MIN_P:  # nothing but the most likely token is left
        temperature, top_p, min_p = 0.0, 1.0, 0.0
    return SamplingParams(
        temperature=temperature,
        top_k=max(defaults.top_k if request.top_k is None else request.top_k, 0),
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=given(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        logit_bias=biases,
        # The choices of one seed differ, and the same seed gives the same choices again.
        seed=None if request.seed is None else (request.seed + choice) % 2**64,
        logprobs=scores,
        min_new_tokens=min_new_tokens,
        end_token_ids=end_token_ids if min_new_tokens else frozenset(),
    )


def _temperature(request: GenerationRequest, default: float) -> float:
    given = request.temperature
    if request.do_sample is None:
        return default if given is None else float(given)
    if given is not None and (given > 0) != request.do_sample:
        why = "true, and a temperature of 0 draws nothing" if request.do_sample else "false, and a temperature is given"
        raise errors.invalid(f"'do_sample' is {why}.", "do_sample", "invalid_value")
    if not request.do_sample:
        return 0.0
    return float(given or default or 1)
