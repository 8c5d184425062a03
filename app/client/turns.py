"""What the parts of a terminal chat hand to each other: messages, how to ask, and what comes of an answer.

It knows no service and no terminal.
"""

from collections.abc import Generator
from dataclasses import dataclass

from openai import OpenAI


@dataclass(frozen=True, slots=True)
class Message:
    """What one of the two has said."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Knobs:
    """How answers are asked for. None: as the service has it."""

    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """Whom to ask, and how."""

    client: OpenAI
    model: str
    knobs: Knobs


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer and of what came before it."""

    prompt_tokens: int
    remembered_tokens: int
    """Of the prompt's, those that were not computed again."""
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer's end."""

    is_cut: bool
    """At the most tokens that it may have."""
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what a model thinks before its answer."""

    text: str


Pieces = Generator[Thought | str | Ended, None, None]
"""An answer as it is made: thoughts, text, and at last its end. Closing it early ends the work at the service."""
