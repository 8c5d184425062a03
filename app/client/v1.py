"""Client of `/v1`: connects, lists the models, and words errors, with the `openai` library's blocking client.

Knows nothing of how a chat is shown, and imports nothing of ours.
"""

from dataclasses import dataclass
from typing import Any

from openai import APIConnectionError, APIStatusError, OpenAI, OpenAIError, Timeout

_NO_TIME_LIMIT = Timeout(None, connect=5)
"""No limit once connected, because CPUs may be slow."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model thinks before it answers."""

    has_switch: bool
    """Whether it can be told not to."""
    short_tokens: int
    """The most tokens of a short thought."""
    default: str
    """off, short or full."""


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    context_tokens: int | None
    """The longest prompt and answer together; None: unknown."""
    can_chat: bool = True
    """False: it has no chat template, and only completes texts."""
    thinking: Thinking | None = None
    """None: it does not think."""


def connect(address: str, api_key: str | None) -> OpenAI:
    """Makes a client of the service at `address`, such as "http://127.0.0.1:8000". It does not retry."""
    key = api_key or "none"  # the library requires one
    return OpenAI(base_url=f"{address}/v1", api_key=key, timeout=_NO_TIME_LIMIT, max_retries=0)


def models(client: OpenAI) -> list[Model]:
    """Lists the served models. Raises OpenAIError."""
    return [
        Model(
            model.id,
            getattr(model, "max_context_tokens", None),
            can_chat="chat" in getattr(model, "capabilities", ["chat"]),
            thinking=_thinking(getattr(model, "thinking", None)),
        )
        for model in client.models.list()
    ]


def _thinking(listed: dict[str, Any] | None) -> Thinking | None:
    return Thinking(listed["switch"], listed["short_tokens"], listed["default"]) if listed else None


def reason(error: OpenAIError) -> str:
    """The service's error message, or why there is none."""
    if isinstance(error, APIConnectionError):
        return "The service does not answer. Is it running?"
    if isinstance(error, APIStatusError):
        said = error.body.get("message") if isinstance(error.body, dict) else None
        return said if isinstance(said, str) and said else f"Status {error.status_code}: is that a Redoubt service?"
    return str(error)
