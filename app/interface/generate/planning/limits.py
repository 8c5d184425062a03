"""The service's limits on one request, and the number of tokens that may follow a prompt.

It knows only tokens and lengths: no template, no HTTP, no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.interface.generate.planning.context_window import WindowOptions, plan_chat_window, plan_window
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

    @property
    def wanted(self) -> int:
        """The most output tokens, if the context has room for them."""
        return self.default if self.tokens is None else self.tokens


@dataclass(frozen=True, slots=True)
class BoundedPrompt:
    """A prompt, and how many tokens may follow it."""

    token_ids: Sequence[int]
    output_tokens: int
    wanted_tokens: int
    """How many tokens could follow if the context were longer."""
    window: ContextWindow | None = None


def within_context(
    token_ids: Sequence[int], limit: OutputLimit, context_tokens: int, prompt_field: str
) -> BoundedPrompt:
    """Bounds a request whose output ends where the context does. Raises ApiError (400) if not one token fits."""
    room = context_tokens - len(token_ids)
    if room < min(1, limit.wanted):
        raise errors.context_length_exceeded(len(token_ids), 1, context_tokens, prompt_field)
    return BoundedPrompt(token_ids, min(limit.wanted, room), limit.wanted)


def within_window(
    token_ids: Sequence[int],
    limit: OutputLimit,
    options: WindowOptions,
    *,
    context_tokens: int,
    prompt_field: str,
) -> BoundedPrompt:
    """Bounds a prompt whose context shifts: only the output's own limit ends it. Raises ApiError (400).

    A prompt that is longer than the window loses what comes after its kept first tokens.
    """
    window = plan_window(options, context_tokens, len(token_ids), system_tokens=0, prompt_field=prompt_field)
    if len(token_ids) > window.tokens:
        newest = window.tokens - window.keep_tokens - window.discard_tokens
        token_ids = [*token_ids[: window.keep_tokens], *token_ids[-newest:]]
    return _shifting(token_ids, limit, window)


def chat_within_window(
    token_ids: Sequence[int], limit: OutputLimit, options: WindowOptions, *, context_tokens: int, system_tokens: int
) -> BoundedPrompt:
    """Bounds a chat's prompt, which fits the context. Its output ends with the context where that can't be shifted.

    system_tokens: the number of first tokens that are the template's system prompt. Raises ApiError (400).
    """
    window = plan_chat_window(options, context_tokens, len(token_ids), system_tokens)
    if window is None:
        return within_context(token_ids, limit, context_tokens, "messages")
    return _shifting(token_ids, limit, window)


def _shifting(token_ids: Sequence[int], limit: OutputLimit, window: ContextWindow) -> BoundedPrompt:
    # The engine counts positions in 32 bits.
    return BoundedPrompt(token_ids, min(limit.wanted, MAX_TOKENS - len(token_ids)), limit.wanted, window)
