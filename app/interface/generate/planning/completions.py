"""Plans a completion request: its options, then its prompts, then the limits (`planning/generation.py`)."""

from collections.abc import Sequence

from app.interface.functions.requested import grammar_of_text
from app.interface.generate.planning.generation import GenerationOptions, make_job, window_options
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import BoundedPrompt, Limits, OutputLimit, within_context, within_window
from app.interface.generate.planning.searches import search_of
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.wire.completions import CompletionRequest

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens` in completions; in chat it is the service's."""
NO_LIMIT = -1
"""`max_tokens` of a client that wants as many as the service allows."""


def plan_completion(
    model: ChatModel, request: CompletionRequest, limits: Limits, caller: Caller, request_id: str
) -> Job:
    """Tokenizes text prompts; may be slow. Raises ApiError (400)."""
    options = _options(model, request, limits)
    prompts = [
        _bounded(
            model,
            request,
            options,
            _token_ids(model, prompt, i, bounded=options.window is None),
            limits.default_max_tokens,
        )
        for i, prompt in enumerate(request.prompts)
    ]
    echoes = tuple(_text(model, prompt) for prompt in request.prompts) if request.echo else ()
    return make_job(
        model, request, limits, caller, request_id, options=options, prompts=prompts, starts_text=False, echoes=echoes
    )


def _options(model: ChatModel, request: CompletionRequest, limits: Limits) -> GenerationOptions:
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise errors.invalid("'best_of' is less than 'n'.", "best_of", "invalid_value")
    search = search_of(request, limits.max_beams)
    if search is None and request.best_of not in (None, request.n or 1) and request.stream:
        raise errors.invalid("'best_of' does not go with 'stream'.", "best_of", "invalid_value")
    window = window_options(model, request, search)
    if window is not None and request.echo:
        raise errors.invalid("'echo' does not go with a context that shifts.", "echo", "invalid_value")
    return GenerationOptions(search, window, grammar=grammar_of_text(request))


def _token_ids(model: ChatModel, prompt: str | Sequence[int], number: int, *, bounded: bool) -> Sequence[int]:
    """Returns the prompt's tokens. bounded: refuse a text that can't fit the context before it is tokenized."""
    if isinstance(prompt, str):
        token_ids: Sequence[int] = model.raw_prompt(prompt, bounded=bounded)
    else:
        token_ids = prompt
        model.check_vocabulary(token_ids, "prompt")
    if not token_ids:
        message = f"'prompt': prompt {number} is empty, and this model has no token to start from."
        raise errors.invalid(message, "prompt")
    return token_ids


def _bounded(
    model: ChatModel,
    request: CompletionRequest,
    options: GenerationOptions,
    token_ids: Sequence[int],
    most_tokens: int,
) -> BoundedPrompt:
    """most_tokens: the most output tokens of a client that wants no limit."""
    has_own_limit = request.max_tokens != NO_LIMIT
    limit = OutputLimit(
        request.max_tokens if has_own_limit else None, DEFAULT_MAX_TOKENS if has_own_limit else most_tokens
    )
    if options.window is None:
        return within_context(token_ids, limit, model.context_tokens, "prompt")
    return within_window(
        token_ids,
        limit,
        options.window,
        context_tokens=model.context_tokens,
        prompt_field="prompt",
    )


def _text(model: ChatModel, prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.bytes.join(prompt).decode("utf-8", "replace")
