"""From a validated request to what the engine is asked for.

Renders, tokenizes, and refuses by name what can't be done; what becomes of the engine's tokens is in generation.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.interface import errors
from app.interface.functions.wanted import Functions, Grammar, functions_of, grammar_of
from app.interface.planning.context_window import WindowWishes, plan_window, shifts
from app.interface.planning.job import Job, Limits
from app.interface.planning.searches import search_of
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest
from app.interface.wire.fields import MAX_TOKENS
from app.messages.requests import BeamParams, ContextWindow, ContrastiveParams, GenerateRequest, SamplingParams

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens` in completions; in chat it is the service's."""


def plan_chat(model: ChatModel, request: ChatCompletionRequest, limits: Limits, request_id: str) -> Job:
    """Renders and tokenizes; may take long for a long conversation. Raises ApiError (400)."""
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise errors.invalid("'max_tokens' and 'max_completion_tokens' contradict each other.", "max_completion_tokens")
    limit, limit_field = request.output_limit
    if request.top_logprobs is not None and not request.logprobs:
        raise errors.invalid("'top_logprobs' is allowed only with 'logprobs': true.", "top_logprobs", "invalid_value")
    functions = functions_of(request)
    grammar = grammar_of(request, functions, model.tokens.special)
    tools = (request.tools or ()) if functions is not None else ()
    wishes = _window_wishes(request)
    search = search_of(request, limits.max_beams)
    if search is None and shifts(wishes, model.on_overflow):
        whole = model.chat_prompt(request.messages, tools, request.response_format, bounded=False)
        system_tokens = model.system_tokens(request.messages, tools, request.response_format)
        prompt, window = plan_window(wishes, model.context_tokens, whole, system_tokens, "messages")
        sequence = _Sequence(prompt, _endless_tokens(prompt, limit, limits.default_max_tokens), window)
    else:
        prompt = model.chat_prompt(request.messages, tools, request.response_format)
        output = _output_tokens(model, prompt, limit, limit_field, limits.default_max_tokens, "messages")
        sequence = _Sequence(prompt, output)
    return _job(
        model,
        request,
        limits,
        request_id,
        [sequence],
        starts_text=True,
        grammar=grammar,
        functions=functions,
        search=search,
    )


def plan_completion(model: ChatModel, request: CompletionRequest, limits: Limits, request_id: str) -> Job:
    """Tokenizes the prompts that are text; may take long. Raises ApiError (400)."""
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise errors.invalid("'best_of' is less than 'n'.", "best_of", "invalid_value")
    search = search_of(request, limits.max_beams)
    if search is None and request.best_of not in (None, request.n or 1) and request.stream:
        raise errors.invalid("'best_of' does not go with 'stream'.", "best_of", "invalid_value")
    wishes = _window_wishes(request)
    endless = search is None and shifts(wishes, model.on_overflow)
    if endless and request.echo:
        raise errors.invalid("'echo' does not go with a context that shifts.", "echo", "invalid_value")
    sequences = []
    for i, prompt in enumerate(request.prompts):
        token_ids: Sequence[int]
        if isinstance(prompt, str):
            token_ids = model.raw_prompt(prompt, bounded=not endless)
        else:
            token_ids = _in_vocabulary(model, prompt, "prompt")
        if not token_ids:
            raise errors.invalid(f"'prompt': prompt {i} is empty, and this model has no token to start from.", "prompt")
        if endless:
            token_ids, window = plan_window(wishes, model.context_tokens, token_ids, 0, "prompt")
            output = _endless_tokens(token_ids, request.max_tokens, COMPLETION_MAX_TOKENS)
            sequences.append(_Sequence(token_ids, output, window))
        else:
            output = _output_tokens(model, token_ids, request.max_tokens, "max_tokens", COMPLETION_MAX_TOKENS, "prompt")
            sequences.append(_Sequence(token_ids, output))
    echoes: tuple[str, ...] = ()
    if request.echo:
        echoes = tuple(
            prompt if isinstance(prompt, str) else model.tokens.join(prompt).decode("utf-8", "replace")
            for prompt in request.prompts
        )
    return _job(model, request, limits, request_id, sequences, starts_text=False, echoes=echoes, search=search)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One prompt and what may follow it."""

    prompt: Sequence[int]
    output_tokens: int
    window: ContextWindow | None = None


def _window_wishes(request: ChatCompletionRequest | CompletionRequest) -> WindowWishes:
    return WindowWishes(request.on_overflow, request.context_window, request.n_keep, request.n_discard)


def _endless_tokens(prompt: Sequence[int], limit: int | None, default: int) -> int:
    """The output's limit where the context is none; positions are counted in 32 bits."""
    return min(default if limit is None else limit, MAX_TOKENS - len(prompt))


def _output_tokens(
    model: ChatModel,
    prompt: Sequence[int],
    limit: int | None,
    limit_field: str,
    default: int,
    prompt_field: str,
) -> int:
    room = model.context_tokens - len(prompt)
    if room < min(1, 1 if limit is None else limit):
        raise errors.context_length_exceeded(len(prompt), limit or 1, model.context_tokens, prompt_field)
    if limit is None:
        return min(default, room)
    if limit > room:
        raise errors.context_length_exceeded(len(prompt), limit, model.context_tokens, limit_field)
    return limit


def _job(
    model: ChatModel,
    request: ChatCompletionRequest | CompletionRequest,
    limits: Limits,
    request_id: str,
    sequences: Sequence[_Sequence],
    *,
    starts_text: bool,
    grammar: Grammar | None = None,
    functions: Functions | None = None,
    echoes: tuple[str, ...] = (),
    search: BeamParams | ContrastiveParams | None = None,
) -> Job:
    answers = choices = request.n or 1
    if search is None and isinstance(request, CompletionRequest):
        choices = max(answers, request.best_of or 0)
    if choices > limits.max_choices:
        field = "n" if choices == answers else "best_of"
        raise errors.invalid(f"'{field}': at most {limits.max_choices} choices are allowed.", field, "invalid_value")
    if choices * len(sequences) > limits.max_choices:
        message = f"{len(sequences)} prompts with n={choices} are more than the {limits.max_choices} allowed."
        raise errors.invalid(f"'prompt': {message}", "prompt", "invalid_value")
    stops = frozenset(_in_vocabulary(model, request.stop_token_ids or (), "stop_token_ids"))
    if not request.ignore_eos:
        stops |= model.eos_token_ids
    least = request.min_tokens or 0
    if any(least > sequence.output_tokens for sequence in sequences):
        raise errors.invalid("'min_tokens' is more than may be generated.", "min_tokens", "invalid_value")
    scores = request.scores if choices == answers else request.scores or 0
    beams = isinstance(search, BeamParams)
    each = 1 if beams else choices
    requests = tuple(
        GenerateRequest(
            request_id=f"{request_id}-{prompt * each + choice}",
            prompt_token_ids=tuple(sequence.prompt),
            max_new_tokens=sequence.output_tokens,
            sampling=replace(
                _sampling(model, request, choice),
                logprobs=scores,
                min_new_tokens=least,
                end_token_ids=stops if least else frozenset(),
            ),
            stop_token_ids=stops,
            prompt_logprobs=request.scores if echoes else None,
            grammar=grammar.schema if grammar is not None else None,
            window=sequence.window,
            search=search,
        )
        for prompt, sequence in enumerate(sequences)
        for choice in range(each)
    )
    prompt_tokens = sum(len(sequence.prompt) for sequence in sequences)
    return Job(
        request_id,
        requests,
        prompt_tokens,
        request.stops,
        choices,
        starts_text,
        scores=request.scores,
        echoes=echoes,
        answers=None if choices == answers else answers,
        functions=functions,
        beams=beams,
        grammar=grammar,
    )


def _sampling(model: ChatModel, request: ChatCompletionRequest | CompletionRequest, choice: int) -> SamplingParams:
    def given(value: float | None, default: float) -> float:
        return default if value is None else float(value)

    biases = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    _in_vocabulary(model, biases, "logit_bias")
    return SamplingParams(
        temperature=given(request.temperature, 1.0),
        top_k=max(request.top_k or 0, 0),
        top_p=given(request.top_p, 1.0),
        min_p=given(request.min_p, 0.0),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        logit_bias=biases,
        # The choices of one seed differ, and the same seed gives the same choices again.
        seed=None if request.seed is None else (request.seed + choice) % 2**64,
    )


def _in_vocabulary(model: ChatModel, token_ids: Iterable[int], field: str) -> list[int]:
    token_ids = list(token_ids)
    model.check_vocabulary(token_ids, field)
    return token_ids
