"""Makes the budget of a thought for the engine: the tokens of its end, and the bytes of those that may be marks."""

from collections.abc import Callable
from functools import cached_property

from app.interface.text.detokenizer import TokenBytes
from app.interface.thinking.ends import Calls, written_ends
from app.interface.thinking.marks import Thought, ThoughtMarks
from app.messages.thoughts import ThoughtBudget


class ThoughtBudgets:
    """Makes the budgets of one model. Thread-safe."""

    def __init__(
        self, marks: ThoughtMarks, tokens: TokenBytes, encode: Callable[[str], list[int]], model_type: str
    ) -> None:
        """tokens: with the names of special tokens that are marks. encode: of a text that may have control tokens."""
        self._marks = marks
        self._tokens = tokens
        self._encode = encode
        self._model_type = model_type

    def budget(self, thought: Thought, tokens: int, calls: Calls) -> ThoughtBudget:
        """Returns the budget of a thought that may have so many tokens."""
        ends = written_ends(self._marks, self._model_type, calls)
        return ThoughtBudget(
            tokens,
            tuple(self._encode(ends.end)),
            self._marks.opening.encode(),
            self._marks.closing.encode(),
            self._spelled,
            is_open=thought.is_open,
            end_again=tuple(self._encode(ends.again)),
        )

    @cached_property
    def _spelled(self) -> dict[int, bytes]:
        """The bytes of the tokens that a `ThoughtBudget` needs; made when first used, from the whole vocabulary."""
        marks = opening, closing = self._marks.opening.encode(), self._marks.closing.encode()
        beginnings = tuple({mark[:end] for mark in marks for end in range(1, len(mark) + 1)})
        endings = tuple({mark[begin:] for mark in marks for begin in range(len(mark))})
        parts = {mark[begin:end] for mark in marks for end in range(1, len(mark) + 1) for begin in range(end)}

        def matters(text: bytes) -> bool:
            return (
                text in parts
                or text.isspace()
                or text.endswith(beginnings)
                or text.startswith(endings)
                or opening in text
                or closing in text
                or not (text.isascii() or _is_whole(text))
            )

        return self._tokens.where(matters)


def _is_whole(text: bytes) -> bool:
    """Whether the text is whole characters of UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
