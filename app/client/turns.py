"""The types that the parts of a terminal chat exchange: messages, how to ask, and pieces of an answer.

Knows no service and no terminal.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openai import OpenAI


@dataclass(frozen=True, slots=True)
class File:
    """A file that goes with a question, as the service has read it."""

    name: str
    text: str = field(repr=False)
    pages: int | None = None
    expected_s: float | None = field(default=None, compare=False)
    """How long it is read before an answer, if nothing of it is cached; None: unknown."""
    attention_s: float = field(default=0.0, compare=False)
    """What of it is attention's, which grows with the square of the tokens."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the user or the model."""

    role: str
    text: str
    files: Sequence[File] = ()


@dataclass(frozen=True, slots=True)
class Knobs:
    """Options of a question. None: the service's default."""

    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    thinking: str | None = None
    """off, short or full; kept with the chat."""
    collection: str | None = None
    """The id of the collection of documents in which answers are found."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The client, model and options of a question."""

    client: OpenAI
    model: str
    knobs: Knobs
    thinking: Mapping[str, Any] = field(default_factory=dict)
    """The fields that say how much to think."""
    files: Sequence[File] = ()
    """What goes with the question."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer and its prompt."""

    prompt_tokens: int
    remembered_tokens: int
    """Prompt tokens that were not computed again."""
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Context:
    """What the model saw of the conversation."""

    left_out_turns: int
    """How many of its oldest turns the model did not see."""
    limit_tokens: int
    """A longer conversation loses its oldest turns."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer."""

    cut_by: Literal["length", "context"] | None
    """What has cut it: the longest answer, or the end of the context."""
    usage: Usage | None
    context: Context | None
    """None: the service does not tell."""
    was_thinking: bool = False
    """Whether that was within its thought, so that there is no answer."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's thinking before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Lines below an answer that name what it cites. They are shown, and no part of it."""

    text: str


Pieces = Generator[Thought | Sources | str | Ended, None, None]
"""An answer as it is made: thoughts, text, and at last its end. Closing it early ends the work at the service."""
