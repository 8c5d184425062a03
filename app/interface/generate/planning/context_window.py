"""Decides what happens when a request's context is full: it is refused, or the oldest tokens are dropped (shift).

Plans the window that the engine then keeps (`app.messages.requests.ContextWindow`). It knows only tokens and lengths:
no template, no HTTP, no engine.
"""

from dataclasses import dataclass, replace

from app.interface.request import errors
from app.messages.requests import ContextWindow, OnOverflow

BLOCK_TOKENS = 128
"""A window consists of whole blocks: a multiple of every KV page size."""
SINK_TOKENS = 4
"""The minimum of kept first tokens: without them the output degenerates (attention sinks, Xiao et al. 2023)."""


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """The request's fields; None: not given."""

    on_overflow: OnOverflow | None = None
    context_window: int | None = None
    n_keep: int | None = None
    n_discard: int | None = None


def shifts(options: WindowOptions, default: OnOverflow) -> bool:
    """Whether the context shifts. Raises ApiError (400) for a shift option if it does not."""
    if (options.on_overflow or default) == "shift":
        return True
    for field in ("context_window", "n_keep", "n_discard"):
        if getattr(options, field) is not None:
            raise errors.invalid(f'\'{field}\' is for "on_overflow": "shift".', field, "invalid_value")
    return False


def plan_window(
    options: WindowOptions, context_tokens: int, prompt_tokens: int, system_tokens: int, prompt_field: str
) -> ContextWindow:
    """Returns the window of a prompt, which may be longer than it. Raises ApiError (400).

    system_tokens: the number of first tokens that are the template's system prompt. They are kept, unless the request
    itself asks to shift and to keep fewer.
    """
    tokens = window_tokens(options.context_window, context_tokens)
    keep = max(SINK_TOKENS, system_tokens)
    if options.n_keep is not None:
        keep = prompt_tokens if options.n_keep == -1 else options.n_keep
        if keep < system_tokens and options.on_overflow is None:
            message = f"'n_keep' is less than the {system_tokens} tokens of the system prompt, which would be lost."
            raise errors.invalid(message, "n_keep", "invalid_value")
    discard = options.n_discard
    if discard is None or discard == -1:
        discard = max(min((tokens - keep) // 2, tokens - keep - BLOCK_TOKENS), 1)
    # Whole KV pages round both up, and at least one block of the latest tokens must stay.
    if keep + discard + BLOCK_TOKENS > tokens:
        if options.n_keep is None and options.n_discard is None:
            raise errors.context_length_exceeded(keep, BLOCK_TOKENS + 1, tokens, prompt_field)
        field = "n_keep" if options.n_keep is not None else "n_discard"
        message = f"{keep} tokens to keep, {discard} to discard and {BLOCK_TOKENS} to go on are more than {tokens}."
        raise errors.invalid(f"'{field}': {message}", field, "invalid_value")
    return ContextWindow(tokens, keep, discard)


def plan_chat_window(
    options: WindowOptions, context_tokens: int, prompt_tokens: int, system_tokens: int
) -> ContextWindow | None:
    """Returns the window of a chat's prompt; None: the context is too small for one, so the answer ends with it.

    What the request asks of the window itself is refused if it can't be had. Raises ApiError (400).
    """
    is_own = any(value is not None for value in (options.context_window, options.n_keep, options.n_discard))
    blocks = context_tokens // BLOCK_TOKENS
    has_room = blocks >= 2 and max(SINK_TOKENS, system_tokens) + 1 + BLOCK_TOKENS <= blocks * BLOCK_TOKENS
    if not is_own and not has_room:
        return None
    window = plan_window(options, context_tokens, prompt_tokens, system_tokens, "messages")
    if prompt_tokens > window.tokens:  # what is left of the context's last block
        return None
    return replace(window, is_required=False)


def window_tokens(wanted: int | None, context_tokens: int) -> int:
    if wanted is not None and wanted > context_tokens:
        message = f"'context_window' is more than the context of {context_tokens} tokens."
        raise errors.invalid(message, "context_window", "invalid_value")
    tokens = (wanted or context_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    if tokens < 2 * BLOCK_TOKENS:
        message = f"a window has at least {2 * BLOCK_TOKENS} tokens, but this one has {tokens}."
        raise errors.invalid(f"'context_window': {message}", "context_window", "invalid_value")
    return tokens
