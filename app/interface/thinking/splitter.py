"""Splits the thought from the answer in an output that arrives in pieces. It knows no token.

Only an output's beginning can be a thought: marks within an answer are text. White space around both is dropped.
"""

from typing import Literal

from app.interface.thinking.channels import ChannelSplitter
from app.interface.thinking.marks import Thought
from app.interface.thinking.possible_start import possible_start


class ThoughtSplitter:
    """Splits one output; the result does not depend on how the text is split."""

    __slots__ = ("_begins_open", "_closing", "_has_text", "_held", "_opening", "_stage", "has_thought")

    def __init__(self, thought: Thought) -> None:
        self._opening, self._closing = thought.marks.opening, thought.marks.closing
        self._begins_open = thought.is_open
        goes_on = thought.begun == "thought"
        self._stage: Literal["beginning", "thought", "gap", "answer"] = "thought" if goes_on else "beginning"
        self._held = ""
        self._has_text = goes_on  # whether the thought has shown any
        self.has_thought = goes_on
        """Whether the output has begun with a thought, perhaps an empty one."""

    @property
    def is_undecided(self) -> bool:
        """Whether the text so far may begin a thought or an answer."""
        return self._stage == "beginning"

    @property
    def in_header(self) -> bool:
        """Never: only `channels` have headers."""
        return False

    @property
    def is_thinking(self) -> bool:
        """Whether the thought has begun and not ended."""
        return self._stage == "thought"

    @property
    def is_in_thought(self) -> bool:
        """Whether the output would end within a thought if it ended here."""
        return self._stage == "thought" or (self._stage == "beginning" and self._begins_open)

    @property
    def is_over(self) -> bool:
        """Whether everything that follows is answer, and shown at once."""
        return self._stage == "answer"

    def feed(self, text: str) -> tuple[str, str]:
        """Returns what the text adds to the thought and to the answer."""
        if self._stage == "answer":
            return "", text
        self._held += text
        if self._stage == "beginning" and not self._decide():
            return "", ""
        thought = self._think() if self._stage == "thought" else ""
        return thought, self._answer() if self._stage in ("gap", "answer") else ""

    def finish(self) -> tuple[str, str]:
        """Returns what was held back at the end of the output."""
        held, self._held = self._held, ""
        if self._stage == "thought" or (self._stage == "beginning" and self._begins_open):
            self.has_thought = True
            self._stage = "answer"
            return (held if self._has_text else held.lstrip()).rstrip(), ""
        self._stage = "answer"
        return "", held

    def _decide(self) -> bool:
        """Returns whether it is decided what the output begins with."""
        start = self._held.lstrip()
        if start.startswith(self._opening):  # a model may repeat the mark that its prompt ends with
            self._held = start[len(self._opening) :]
        elif self._opening.startswith(start):
            return False
        elif not self._begins_open:
            self._stage = "answer"
            return True
        self._stage, self.has_thought = "thought", True
        return True

    def _think(self) -> str:
        if not self._has_text:
            self._held = self._held.lstrip()
        end = self._held.find(self._closing)
        if end >= 0:
            thought, self._held = self._held[:end].rstrip(), self._held[end + len(self._closing) :]
            self._stage = "gap"
            return thought
        # White space belongs to the thought only if more of it follows.
        shown = self._held[: possible_start(self._held, self._closing)].rstrip()
        self._held = self._held[len(shown) :]
        self._has_text = self._has_text or bool(shown)
        return shown

    def _answer(self) -> str:
        answer = self._held.lstrip() if self._stage == "gap" else self._held
        self._held = ""
        if answer:
            self._stage = "answer"
        return answer


def splitter_of(thought: Thought) -> ThoughtSplitter | ChannelSplitter:
    """Returns the splitter for an output that may begin with this thought."""
    if thought.in_channels:
        return ChannelSplitter(marks_are_tokens=thought.marks_are_tokens, begun=thought.begun)
    return ThoughtSplitter(thought)
