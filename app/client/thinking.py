"""How much the model thinks before it answers: off, short or full, as a person chooses it for a chat.

Knows neither a terminal nor a service.
"""

from typing import Any

from app.client.account import ChatError
from app.client.v1 import Model

MODES = ("off", "short", "full")


def fields(mode: str | None, model: Model) -> dict[str, Any]:
    """The fields of a question. mode: None: the model's default."""
    if mode is None or model.thinking is None:
        return {}
    if mode == "off":
        return {"enable_thinking": False}
    return {"enable_thinking": True, "thinking_budget": model.thinking.short_tokens if mode == "short" else -1}


def check(mode: str, model: Model) -> None:
    """Raises ChatError if the model can't be asked for that."""
    if mode not in MODES:
        raise ChatError(f"/think knows {', '.join(MODES)}.")
    if model.thinking is None:
        raise ChatError(f"{model.id} does not think before it answers.")
    if mode == "off" and not model.thinking.has_switch:
        tokens = model.thinking.short_tokens
        raise ChatError(f"{model.id} always thinks. /think short ends its thoughts after {tokens:,} tokens.")


def described(mode: str | None, model: Model) -> str:
    """A line that says how much it thinks."""
    if model.thinking is None:
        return f"{model.id} does not think before it answers."
    chosen = mode or model.thinking.default
    short = f", at most {model.thinking.short_tokens:,} tokens" if chosen == "short" else ""
    return f"Thinking: {chosen}{short}{'' if mode else ', the default'}"
