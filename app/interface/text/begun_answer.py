"""An answer that the client has begun and the model goes on with: what of a request is one, and how its prompt ends.

The prompt is that of the messages before it, up to where an answer begins, and then what was begun, to the letter. So
it has the tokens of a model that wrote that itself. It knows no particular template.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.interface.request import errors
from app.interface.thinking.channels import CHANNEL, END, MESSAGE, START
from app.interface.thinking.ends import without_thought
from app.interface.thinking.marks import CHANNELS, ThoughtMarks
from app.interface.thinking.requested import TemplateOptions
from app.interface.wire.chat import Message


@dataclass(frozen=True, slots=True)
class Begun:
    """The last message of a conversation, of which both parts may be empty; a thought without a text is not over."""

    thought: str
    text: str


@dataclass(frozen=True, slots=True)
class WrittenThought:
    """What stands around thoughts where a template writes an answer with one."""

    opened: str
    """Between the opening mark and the thought."""
    closed: str
    """Between the thought and the answer."""


def ending_options(
    options: TemplateOptions, messages: Sequence[Message], *, continues: bool | None, opens_answer: bool | None
) -> TemplateOptions:
    """Adds how the prompt ends, by `continue_final_message` and `add_generation_prompt`. Raises ApiError (400)."""
    if not continues:
        return replace(options, opens_answer=opens_answer is not False)
    if opens_answer:
        message = "'add_generation_prompt' and 'continue_final_message' contradict each other."
        raise errors.invalid(message, "add_generation_prompt", "invalid_value")
    last, where = messages[-1], f"messages[{len(messages) - 1}]"
    if last.role != "assistant":
        message = f"'continue_final_message' continues an assistant's message, and '{where}' is not one."
        raise errors.invalid(message, f"{where}.role", "invalid_value")
    if last.tool_calls:
        message = f"'{where}.tool_calls': a message with calls can't be continued."
        raise errors.invalid(message, f"{where}.tool_calls", "invalid_value")
    return replace(options, continues=True)


def continued(prompt: str, begun: Begun, marks: ThoughtMarks | None, written: WrittenThought) -> str:
    """Appends to the prompt what was begun. marks: of the model's thoughts; None: it has none, and a text was begun."""
    if marks is None:
        return prompt + begun.text
    if marks == CHANNELS:
        if begun.thought:
            prompt += f"{marks.opening}{begun.thought}" + (f"{END}{START}assistant" if begun.text else "")
        return f"{prompt}{CHANNEL}final{MESSAGE}{begun.text}" if begun.text else prompt
    if not begun.thought:
        return without_thought(prompt, marks) + begun.text if begun.text else prompt
    if not prompt.rstrip().endswith(marks.opening):
        prompt += marks.opening
    if prompt.endswith(marks.opening):
        prompt += written.opened
    return prompt + begun.thought + (written.closed + begun.text if begun.text else "")


def written_thought(shown: str, thought: str, text: str, marks: ThoughtMarks) -> WrittenThought:
    """Finds what stands around a thought in a rendered answer; what models of this kind write, if it is not shown."""
    begin = shown.find(thought)
    opening = shown.rfind(marks.opening, 0, max(begin, 0))
    end = shown.find(text, begin)
    if min(begin, opening, end) >= 0:
        opened, closed = shown[opening + len(marks.opening) : begin], shown[begin + len(thought) : end]
        if not opened.strip() and closed.strip() == marks.closing:
            return WrittenThought(opened, closed)
    space = marks.before_closing
    return WrittenThought(space, f"{space}{marks.closing}{space * 2}")
