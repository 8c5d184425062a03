"""The service's limits on one request, and the number of tokens that may follow a prompt.

It knows only tokens and lengths: no template, no HTTP, no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.interface.generate.planning.context_window import WindowOptions, plan_window
from app.interface.request import errors
from app.interface.wire.fields import MAX_TOKENS
from app.messages.requests import ContextWindow


@dataclass(frozen=True, slots=True)
class Limits:
    """The service's limits on one request."""

    default_max_tokens: int
    """Output tokens of a chat request without a limit; less if the context is full before."""
    max_choices: int
    """The maximum of `n`, and of sequences per request."""
    max_beams: int = 8
    """The maximum of `num_beams`, and of `top_k` with `penalty_alpha`."""

    def check_choices(self, prompts: int, choices: int, field: str) -> None:
        """Raises ApiError (400) for too many choices of one prompt, set by `field`, or of all prompts."""
        if choices > self.max_choices:
            raise errors.invalid(f"'{field}': at most {self.max_choices} choices are allowed.", field, "invalid_value")
        if choices * prompts > self.max_choices:
            message = f"{prompts} prompts with n={choices} are more than the {self.max_choices} allowed."
            raise errors.invalid(f"'prompt': {message}", "prompt", "invalid_value")


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The request's limit on its output."""

    tokens: int | None
    """None: `default` applies."""
    default: int
    field: str
    """The field that sets the limit."""


@dataclass(frozen=True, slots=True)
class BoundedPrompt:
    """A prompt, and how many tokens may follow it."""

    token_ids: Sequence[int]
    output_tokens: int
    window: ContextWindow | None = None


def within_context(
    token_ids: Sequence[int], limit: OutputLimit, context_tokens: int, prompt_field: str
) -> BoundedPrompt:
    """Bounds a request that is refused if the context is full. Raises ApiError (400)."""
    room = context_tokens - len(token_ids)
    if room < min(1, 1 if limit.tokens is None else limit.tokens):
        raise errors.context_length_exceeded(len(token_ids), limit.tokens or 1, context_tokens, prompt_field)
    if limit.tokens is None:
        return BoundedPrompt(token_ids, min(limit.default, room))
    if limit.tokens > room:
        raise errors.context_length_exceeded(len(token_ids), limit.tokens, context_tokens, limit.field)
    return BoundedPrompt(token_ids, limit.tokens)


def within_window(
    token_ids: Sequence[int],
    limit: OutputLimit,
    options: WindowOptions,
    *,
    context_tokens: int,
    system_tokens: int,
    prompt_field: str,
) -> BoundedPrompt:
    """Bounds a request whose context shifts: only the output's own limit ends it. Raises ApiError (400).

    system_tokens: the number of first tokens that are the template's system prompt.
    """
    token_ids, window = plan_window(options, context_tokens, token_ids, system_tokens, prompt_field)
    tokens = limit.default if limit.tokens is None else limit.tokens
    # The engine counts positions in 32 bits.
    return BoundedPrompt(token_ids, min(tokens, MAX_TOKENS - len(token_ids)), window)
