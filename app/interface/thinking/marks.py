"""The marks between which models write their thoughts, and how an answer to one prompt may begin with a thought.

It knows neither tokens nor templates; gpt-oss' channels are no marks and not known here.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """What a thought begins and ends with. Either may be a special token or plain text."""

    opening: str
    closing: str


FAMILIES = (
    ThoughtMarks("<think>", "</think>"),  # DeepSeek R1 and V3.1, Qwen 3, QwQ, GLM 4.5, SmolLM3, Phi 4 reasoning
    ThoughtMarks("[THINK]", "[/THINK]"),  # Mistral
    ThoughtMarks("<seed:think>", "</seed:think>"),  # Seed-OSS
)


@dataclass(frozen=True, slots=True)
class Thought:
    """How an answer to one prompt may begin with a thought."""

    marks: ThoughtMarks
    is_open: bool
    """Whether the prompt ends within the thought, as templates open it that always want one."""
    is_expected: bool
    """Whether the model may well think before this answer, so that a grammar has to leave room for it."""


def marks_of(template: str | None, tokens: Collection[str]) -> ThoughtMarks:
    """A model's marks: those of its template, or else of its vocabulary. Others would write the first family's."""
    for marks in FAMILIES:
        if is_known(marks, template):
            return marks
    return next((marks for marks in FAMILIES if marks.opening in tokens and marks.closing in tokens), FAMILIES[0])


def is_known(marks: ThoughtMarks, template: str | None) -> bool:
    """Whether the template has one of the marks in it."""
    return template is not None and (marks.opening in template or marks.closing in template)


def thought_after(marks: ThoughtMarks, prompt_end: str, *, is_known: bool) -> Thought:
    """How an answer may begin. prompt_end: the prompt's last characters. is_known: see the function `is_known`."""
    end = prompt_end.rstrip()
    is_open = end.endswith(marks.opening)
    return Thought(marks, is_open, is_open or (is_known and not end.endswith(marks.closing)))
