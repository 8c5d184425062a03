"""How many tokens a message takes in a prompt, counted by itself.

A rendering of a long conversation for each part of it that might be kept would be slow, and the size of a message would
depend on what follows. So its texts are counted alone, and what the template writes around them was measured once, with
small conversations. The sum differs from the rendering's by a few tokens; planning checks what it keeps by rendering
it. Knows no particular template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.interface.request.errors import ApiError
from app.interface.wire.chat import FunctionCall, Message, ToolCall
from app.interface.wire.tools import FunctionDefinition, Tool

Count = Callable[[Sequence[str]], list[int]]
"""Returns the tokens of each text."""
Rendered = Callable[[Sequence[Message], Sequence[Tool]], int]
"""Returns the tokens of a conversation's prompt. Raises ApiError if the template refuses it."""

_UNKNOWN_TOKENS: Final = 8
"""What a template that refuses the small conversations is taken to write around a message."""
_WORD, _ARGUMENTS, _NAME = "word", '{"key": "value"}', "probe"
_THOUGHT = "one two three four five six seven eight nine ten eleven twelve"
_TOOL = Tool(type="function", function=FunctionDefinition(name=_NAME, description="", parameters={"type": "object"}))
_USER, _ANSWER = Message(role="user", content=_WORD), Message(role="assistant", content=_WORD)
_RESULT = Message(role="tool", content=_WORD, tool_call_id="probe0000")


def _call(thought: str | None = None) -> Message:
    call = ToolCall(id="probe0000", function=FunctionCall(name=_NAME, arguments=_ARGUMENTS))
    return Message(role="assistant", content="", tool_calls=[call], reasoning_content=thought)


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The tokens of one message."""

    in_newest_turn: int
    """As long as no other question follows: templates show the thoughts of a turn's steps."""
    later: int
    """When another question follows."""


@dataclass(frozen=True, slots=True)
class TemplateSizes:
    """What a template writes around texts, in tokens."""

    message: int
    """Around each message."""
    call: int
    """Around each call, without its message."""
    thought: int
    """Around each thought that it shows."""
    shows_thoughts: bool
    """Whether a turn's steps show their thoughts until another question follows."""
    shows_earlier_thoughts: bool
    """Whether they do after that."""

    @classmethod
    def measured(cls, rendered: Rendered, count: Count) -> "TemplateSizes":
        """Measures the template with small conversations."""
        word, arguments, name, thought = count([_WORD, _ARGUMENTS, _NAME, _THOUGHT])

        def tokens(*messages: Message) -> int | None:
            try:
                return rendered(messages, [_TOOL])
            except ApiError:
                return None

        def added(more: int | None, less: int | None) -> int | None:
            return None if more is None or less is None else more - less

        turn = added(tokens(_USER, _ANSWER, _USER), tokens(_USER))
        message = _UNKNOWN_TOKENS if turn is None else max(-(-(turn - 2 * word) // 2), 0)
        step = added(tokens(_USER, _call(), _RESULT), tokens(_USER))
        call = _UNKNOWN_TOKENS if step is None else max(step - word - arguments - name - 2 * message, 0)
        newest = added(tokens(_USER, _call(_THOUGHT), _RESULT), tokens(_USER, _call(), _RESULT)) or 0
        thinking = _ANSWER.model_copy(update={"reasoning_content": _THOUGHT})
        earlier = added(tokens(_USER, thinking, _USER), tokens(_USER, _ANSWER, _USER)) or 0
        least = thought // 2
        return cls(
            message,
            call,
            thought=max(newest - thought, earlier - thought, 0),
            shows_thoughts=newest > least,
            shows_earlier_thoughts=earlier > least,
        )

    def of(self, messages: Sequence[tuple[Message, str, str]], count: Count) -> list[MessageSize]:
        """Returns the sizes of messages, each with its thought and its text."""
        texts = [part for message, thought, text in messages for part in (text, thought, _calls_text(message))]
        counts = count(texts)
        return [self._size(message, *counts[3 * i : 3 * i + 3]) for i, (message, _, _) in enumerate(messages)]

    def _size(self, message: Message, text: int, thought: int, calls: int) -> MessageSize:
        shown = self.message + text + calls + self.call * len(message.tool_calls or ())
        thought += self.thought if thought else 0
        return MessageSize(
            in_newest_turn=shown + thought * self.shows_thoughts,
            later=shown + thought * self.shows_earlier_thoughts,
        )


def _calls_text(message: Message) -> str:
    calls = message.tool_calls or ()
    return "\n".join(f"{call.function.name} {call.function.arguments_text}" for call in calls)
