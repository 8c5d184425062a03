"""The marks around models' thoughts, and how an answer to a prompt may begin with a thought.

It knows neither tokenizers nor templates; `channels` knows gpt-oss's channels.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from app.interface.thinking.channels import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The opening and closing marks of a thought; each may be a special token or plain text."""

    opening: str
    closing: str
    tokens: tuple[str, ...] = ()
    """Special tokens that are needed to find it; empty: the two marks."""
    sign: str | None = None
    """A string that identifies the model's template; None: either mark."""
    before_closing: str = ""
    """White space that models write before the closing mark."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that must be kept in the text to find thoughts."""
        return self.tokens or (self.opening, self.closing)


CHANNELS = ThoughtMarks(
    f"{CHANNEL}analysis{MESSAGE}", END, tokens=(START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN), sign=CHANNEL
)
"""gpt-oss: all that it writes is in channels, not only its thoughts."""
FAMILIES = (
    # DeepSeek R1 and V3.1, Qwen 3, QwQ, GLM 4.5, SmolLM3, Phi 4 reasoning
    ThoughtMarks("<think>", "</think>", before_closing="\n"),
    ThoughtMarks("[THINK]", "[/THINK]"),  # Mistral
    ThoughtMarks("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThoughtMarks("<|channel>thought", "<channel|>", tokens=("<|channel>", "<channel|>")),  # Gemma 4
    ThoughtMarks("Here is my thought process:", "Here is my response:"),  # Granite 3.2
    CHANNELS,
)


@dataclass(frozen=True, slots=True)
class Thought:
    """How an answer to one prompt may begin with a thought."""

    marks: ThoughtMarks
    is_open: bool
    """Whether the prompt ends within the thought: templates of models that always think open it."""
    is_expected: bool
    """Whether the model is likely to think, so that a grammar must leave room for it."""
    marks_are_tokens: bool = False
    """Whether channels' marks are special tokens, as opposed to text that looks like them."""
    begun: Literal["thought", "answer"] | None = None
    """What the output goes on with, where the client has begun it."""

    @property
    def in_channels(self) -> bool:
        """Whether all of the output is in channels."""
        return self.marks == CHANNELS


def marks_of(template: str | None, tokens: Collection[str]) -> ThoughtMarks:
    """Returns a model's marks: those of its template, or else of its vocabulary, or else the first family's."""
    for marks in FAMILIES:
        if is_known(marks, template):
            return marks
    return next((marks for marks in FAMILIES if set(marks.special_tokens) <= set(tokens)), FAMILIES[0])


def is_known(marks: ThoughtMarks, template: str | None) -> bool:
    """Whether the template belongs to a model with these marks."""
    signs = (marks.opening, marks.closing) if marks.sign is None else (marks.sign,)
    return template is not None and any(sign in template for sign in signs)


def thought_after(marks: ThoughtMarks, prompt_end: str, *, is_known: bool) -> Thought:
    """Returns how an answer may begin. prompt_end: the prompt's last characters. is_known: see `is_known` above."""
    end = prompt_end.rstrip()
    is_open = end.endswith(marks.opening)
    if marks == CHANNELS:
        return Thought(marks, is_open=False, is_expected=True)
    return Thought(marks, is_open, is_open or (is_known and not end.endswith(marks.closing)))
