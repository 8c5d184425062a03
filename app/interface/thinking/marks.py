"""The marks between which models write their thoughts, and how an answer to one prompt may begin with a thought.

It knows neither tokenizers nor templates. What gpt-oss' channels are, `channels` knows.
"""

from collections.abc import Collection
from dataclasses import dataclass

from app.interface.thinking.channels import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """What a thought begins and ends with. Either may be a special token or plain text."""

    opening: str
    closing: str
    tokens: tuple[str, ...] = ()
    """Special tokens that are needed to find it; empty: the two."""
    sign: str | None = None
    """What a template has in it whose model writes such thoughts; None: either of the two."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that a text keeps in which thoughts are looked for."""
        return self.tokens or (self.opening, self.closing)


CHANNELS = ThoughtMarks(
    f"{CHANNEL}analysis{MESSAGE}", END, tokens=(START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN), sign=CHANNEL
)
"""gpt-oss: not only its thoughts, all that it writes is in channels."""
FAMILIES = (
    ThoughtMarks("<think>", "</think>"),  # DeepSeek R1 and V3.1, Qwen 3, QwQ, GLM 4.5, SmolLM3, Phi 4 reasoning
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
    """Whether the prompt ends within the thought, as templates open it that always want one."""
    is_expected: bool
    """Whether the model may well think before this answer, so that a grammar has to leave room for it."""
    marks_are_tokens: bool = False
    """Whether channels' marks are special tokens, which are told from text that looks like them."""

    @property
    def in_channels(self) -> bool:
        """Whether all of the output is in channels."""
        return self.marks == CHANNELS


def marks_of(template: str | None, tokens: Collection[str]) -> ThoughtMarks:
    """A model's marks: those of its template, or else of its vocabulary. Others would write the first family's."""
    for marks in FAMILIES:
        if is_known(marks, template):
            return marks
    return next((marks for marks in FAMILIES if set(marks.special_tokens) <= set(tokens)), FAMILIES[0])


def is_known(marks: ThoughtMarks, template: str | None) -> bool:
    """Whether the template is of a model with these marks."""
    signs = (marks.opening, marks.closing) if marks.sign is None else (marks.sign,)
    return template is not None and any(sign in template for sign in signs)


def thought_after(marks: ThoughtMarks, prompt_end: str, *, is_known: bool) -> Thought:
    """How an answer may begin. prompt_end: the prompt's last characters. is_known: see the function `is_known`."""
    end = prompt_end.rstrip()
    is_open = end.endswith(marks.opening)
    if marks == CHANNELS:
        return Thought(marks, is_open=False, is_expected=True)
    return Thought(marks, is_open, is_open or (is_known and not end.endswith(marks.closing)))
