"""A limit on the tokens of a thought, and the watch that says where the thought's end must be written.

The engine writes what the watch returns; the ingress runs the same watch over the same tokens to tell that it did. So
an output depends on its tokens alone, and goes on alike in another engine. It knows no tokenizer: a budget has the
bytes of those tokens that matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_MOST_LATE: Final = 3
"""The most tokens for which an end waits for the end of a character."""


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """How long the thoughts of one output may be, and how they are recognized and ended."""

    tokens: int
    """The most tokens of thoughts. The mark that opens a thought does not count."""
    end: tuple[int, ...]
    """Written after the last of them as if it were sampled, with the closing mark."""
    opening: bytes
    closing: bytes
    spelled: Mapping[int, bytes] = field(repr=False)
    """The bytes of all tokens that may be a part of a mark, are white space, or do not begin and end with a whole
    character."""
    is_open: bool = False
    """Whether the prompt ends within the thought."""
    end_again: tuple[int, ...] = ()
    """Ends a further thought when no token is left. Empty: only the beginning of an output can be a thought."""


class ThoughtWatch:
    """Follows one output token by token."""

    __slots__ = ("_budget", "_left", "_tail", "_thinks", "_writing", "is_over", "was_cut")

    def __init__(self, budget: ThoughtBudget) -> None:
        self._budget = budget
        self._left = budget.tokens
        self._thinks = budget.is_open
        self._tail = b""  # the last bytes, as far as they may begin a mark or a character
        self._writing = 0  # tokens of an end that are still to come
        self.is_over = False
        """Whether nothing that follows can be a thought."""
        self.was_cut = False
        """Whether an end has been written."""

    @property
    def is_writing(self) -> bool:
        """Whether an end has begun that is not complete."""
        return self._writing > 0

    def add(self, token: int) -> tuple[int, ...]:
        """Takes the output's next token; returns what must be written after it, and added too: mostly nothing."""
        if self._writing:
            self._writing -= 1
            if not self._writing:
                self.was_cut, self._thinks, self._tail = True, False, b""
                self.is_over = not self._budget.end_again
            return ()
        if self.is_over:
            return ()
        piece = self._budget.spelled.get(token)
        is_due = self._is_due_after(piece) if self._thinks else self._opens_without_budget(piece)
        if not is_due:
            return ()
        end = self._budget.end_again if self.was_cut else self._budget.end
        self._writing = len(end)
        return end

    def free(self, tokens: Sequence[int]) -> int:
        """Returns how many of these tokens may follow before an end must be written."""
        ahead = ThoughtWatch(self._budget)
        ahead._left, ahead._thinks, ahead._tail = self._left, self._thinks, self._tail
        ahead.is_over, ahead.was_cut = self.is_over, self.was_cut
        return next((place for place, token in enumerate(tokens) if ahead.add(token)), len(tokens))

    def _opens_without_budget(self, piece: bytes | None) -> bool:
        """Looks for the mark that opens a thought; returns whether that thought has to end at once."""
        opening = self._budget.opening
        if self._budget.end_again:  # anywhere
            self._tail = b"" if piece is None else self._tail + piece
            begin = self._tail.find(opening)
            if begin < 0:
                self._tail = self._tail[-len(opening) :]
                return False
        else:
            self._tail = (self._tail + (piece or b"")).lstrip()
            begin = 0
            if piece is None or not self._tail.startswith(opening):
                self.is_over = piece is None or not opening.startswith(self._tail)
                return False
        self._thinks, self._tail = True, self._tail[begin + len(opening) :]
        return self._left <= 0

    def _is_due_after(self, piece: bytes | None) -> bool:
        """Counts a token of a thought; returns whether the thought has to end here."""
        closing = self._budget.closing
        self._left -= 1
        self._tail = b"" if piece is None else self._tail + piece
        end = self._tail.find(closing)
        if end >= 0:
            self._thinks, self._tail = False, self._tail[end + len(closing) :]
            self.is_over = not self._budget.end_again
            return False
        self._tail = self._tail[-max(len(closing), _MOST_LATE) :]
        return self._left <= 0 and (_is_whole(self._tail) or self._left <= -_MOST_LATE)


def _is_whole(text: bytes) -> bool:
    """Whether the text does not end within a character of UTF-8."""
    for length, byte in enumerate(reversed(text[-3:]), start=1):
        if byte < 0x80:
            return True
        if byte >= 0xC0:  # a character's first byte
            return length >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return True
