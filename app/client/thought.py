"""What a model thinks before it answers: the text between <think> and </think>. Knows no terminal."""

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Parts:
    """A text that may still grow, taken apart."""

    thought: str
    answer: str
    is_thinking: bool


def parts(text: str) -> Parts:
    """Thought and answer. Some templates open the thought themselves: then only its end is in the text."""
    start = text.lstrip()
    before, close, after = text.partition(CLOSE)
    if not start.startswith(OPEN):
        if close:
            return Parts(before.strip(), after.lstrip(), is_thinking=False)
        is_undecided = OPEN.startswith(start)
        return Parts("", "" if is_undecided else text, is_thinking=False)
    if not close:
        return Parts(start[len(OPEN) :].lstrip(), "", is_thinking=True)
    return Parts(before.lstrip()[len(OPEN) :].strip(), after.lstrip(), is_thinking=False)


def spoken(text: str) -> str:
    """The answer alone."""
    return parts(text).answer.strip()


def without_marks(text: str) -> str:
    """Thought and answer as one text, as a model is shown what it is to go on with."""
    return text.replace(OPEN, "").replace(CLOSE, "")
