"""Which turns of a conversation the model sees, where it may be longer than the context.

The turns are walked from the first. Whenever the model was asked and system prompt, tools and turns exceeded the limit,
the oldest whole turns are left out, until half of what system prompt and tools leave of the limit is free. Only the
turn before the newest stays as long as it fits, or a question about the answer above it could not be answered. The kept
turns are a function of the conversation, the model and the window alone: the walk for a longer conversation leaves out
the same turns until the limit is reached again, and meanwhile its prompt begins with the earlier one, whose KV pages
are found in the prefix cache or on disk. The system prompt and the newest question always stay. A newest turn that is
too long alone loses its oldest steps, and a tool's result never stays without its call.

The limit is the context without a reserve for the answer. The reserve does not depend on the length that a client
allows the answer, or turns would come and go with it; an answer longer than the reserve shifts the window or ends where
the context does. It knows no template and no tokenizer: messages come with their sizes (`text/message_sizes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from app.interface.text.instructions import is_system
from app.interface.text.message_sizes import MessageSize
from app.interface.wire.chat import Message

_RESERVE_SHARE = 4
_MOST_RESERVE_TOKENS = 8192


def limit_of(context_tokens: int) -> int:
    """Returns the limit: the context without a quarter, or without 8,192 tokens if that is less."""
    return context_tokens - min(context_tokens // _RESERVE_SHARE, _MOST_RESERVE_TOKENS)


@dataclass(frozen=True, slots=True)
class KeptTurns:
    """The part of a conversation that the model sees."""

    messages: list[Message]
    left_out_turns: int
    """The number of oldest turns that are left out as a whole."""
    is_shortest: bool
    """Whether nothing more can be left out."""


def kept_turns(messages: Sequence[Message], sizes: Sequence[MessageSize], room_tokens: int) -> KeptTurns:
    """Leaves out what exceeds `room_tokens`: the limit without the system prompt and the tools.

    sizes: one of each message after the leading system messages.
    """
    system = list(takewhile(is_system, messages))
    walk = _Walk(messages[len(system) :], sizes, max(room_tokens, 0))
    for end in walk.questions():
        walk.ask(end)
    return KeptTurns([*system, *walk.kept()], walk.left_out_turns, walk.is_shortest)


class _Walk:
    """The messages after the system prompt, and what is kept of them up to a question."""

    def __init__(self, messages: Sequence[Message], sizes: Sequence[MessageSize], room_tokens: int) -> None:
        """room_tokens: the limit for these messages."""
        self._messages = messages
        self._room = room_tokens
        self._newest = [0, *accumulate(size.in_newest_turn for size in sizes)]
        self._later = [0, *accumulate(size.later for size in sizes)]
        users = [i for i, message in enumerate(messages) if message.role == "user"]
        # What comes before the first question belongs to its turn.
        self._starts = [0, *users[1:]]
        self._questions: list[int | None] = [*users] if users else [None]
        self._turn = 0  # the oldest kept turn
        self._begin = 0  # its first kept message; if it has lost steps, its question is kept too
        self._current = 0  # the newest turn so far

    def questions(self) -> list[int]:
        """Returns the ends of the conversations with which the model was asked, if they are parts of this one."""
        ends = [
            i + 1
            for i, message in enumerate(self._messages[:-1])
            if message.role == "user" or (message.role == "tool" and self._messages[i + 1].role != "tool")
        ]
        return [*ends, len(self._messages)]

    def ask(self, end: int) -> None:
        """Leaves out what is too much when the model is asked with the messages up to `end`."""
        while self._current + 1 < len(self._starts) and self._starts[self._current + 1] < end:
            self._current += 1
        if self._tokens(end) <= self._room:
            return
        while self._turn < self._current and self._tokens(end) > self._room // 2:
            if self._turn + 1 == self._current and self._tokens(end) <= self._room:
                return
            self._turn += 1
            self._begin = self._starts[self._turn]
        if self._tokens(end) <= self._room:
            return
        for step in self._steps(end):
            self._begin = step
            if self._tokens(end) <= self._room // 2:
                break

    def kept(self) -> list[Message]:
        question = self._question_before()
        return [*([] if question is None else [self._messages[question]]), *self._messages[self._begin :]]

    @property
    def left_out_turns(self) -> int:
        return self._turn

    @property
    def is_shortest(self) -> bool:
        return self._turn == self._current and not self._steps(len(self._messages))

    def _steps(self, end: int) -> list[int]:
        """Returns the beginnings of the newest turn's steps that can be the first kept one."""
        question = self._questions[self._current]
        first = max(self._begin, self._starts[self._current] if question is None else question + 1)
        return [i for i in range(first + 1, end) if self._messages[i].role == "assistant"]

    def _question_before(self) -> int | None:
        """Returns the question of a turn that has lost steps; None if it has lost none."""
        question = self._questions[self._turn]
        return question if question is not None and question < self._begin else None

    def _tokens(self, end: int) -> int:
        question = self._question_before()
        alone = 0 if question is None else self._between(question, question + 1)
        return alone + self._between(self._begin, end)

    def _between(self, begin: int, end: int) -> int:
        """Returns the tokens of messages; those of the newest turn have their thoughts."""
        middle = min(max(begin, self._starts[self._current]), end)
        earlier = self._later[middle] - self._later[begin]
        return earlier + self._newest[end] - self._newest[middle]
