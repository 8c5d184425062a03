"""The service's limits on one request, and how many tokens may follow a prompt.

It knows tokens and lengths only: no template, no HTTP, no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.interface.generate.planning.context_window import WindowOptions, plan_window
from app.interface.request import errors
from app.interface.wire.fields import MAX_TOKENS
from app.messages.requests import ContextWindow


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service allows one request."""

    default_max_tokens: int
    """Output tokens of a chat request that names no limit; less where the context is full before."""
    max_choices: int
    """The largest `n`, and the most sequences of one request."""
    max_beams: int = 8
    """The largest `num_beams`, and the largest `top_k` with `penalty_alpha`."""

    def check_choices(self, prompts: int, choices: int, field: str) -> None:
        """Raises ApiError (400) for too many choices of one prompt, which `field` asks for, or of all prompts."""
        if choices > self.max_choices:
            raise errors.invalid(f"'{field}': at most {self.max_choices} choices are allowed.", field, "invalid_value")
        if choices * prompts > self.max_choices:
            message = f"{prompts} prompts with n={choices} are more than the {self.max_choices} allowed."
            raise errors.invalid(f"'prompt': {message}", "prompt", "invalid_value")


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The limit that a request sets on its output."""

    tokens: int | None
    """None: the request sets none, and `default` holds."""
    default: int
    field: str
    """The request's field for it."""


@dataclass(frozen=True, slots=True)
class BoundedPrompt:
    """One prompt, and how many tokens may follow it."""

    token_ids: Sequence[int]
    output_tokens: int
    window: ContextWindow | None = None


def within_context(
    token_ids: Sequence[int], limit: OutputLimit, context_tokens: int, prompt_field: str
) -> BoundedPrompt:
    """For a request that is refused where its context is full. Raises ApiError (400)."""
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
    """For a request whose context shifts: only the output's own limit ends it. Raises ApiError (400).

    system_tokens: how many of the first tokens are the template's system prompt.
    """
    token_ids, window = plan_window(options, context_tokens, token_ids, system_tokens, prompt_field)
    tokens = limit.default if limit.tokens is None else limit.tokens
    # The engine counts positions in 32 bits.
    return BoundedPrompt(token_ids, min(tokens, MAX_TOKENS - len(token_ids)), window)
