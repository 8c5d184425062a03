"""Calls of earlier turns as a chat template takes them, however badly their arguments ended.

OpenAI's API has arguments as text, most templates want the object, some the text. What a limit has cut is completed,
so that a conversation goes on after it. It knows no particular template.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Literal

from pydantic_core import from_json

from app.interface.wire.chat import FunctionCall, Message, ToolCall

CallForm = Literal["object", "text", "none"]
"""As what a template shows a call's arguments; "none": it does not show calls."""
_NAME, _KEY, _VALUE = "probe_name", "probe_key", "probe_value"
_ID = "probe0000"  # Mistral's template wants nine letters
_PROBE = (
    Message(role="user", content="probe"),
    Message(
        role="assistant",
        tool_calls=[ToolCall(id=_ID, function=FunctionCall(name=_NAME, arguments=f'{{"{_KEY}": "{_VALUE}"}}'))],
    ),
    Message(role="tool", tool_call_id=_ID, name=_NAME, content="probe"),
)


def call_form(render: Callable[[Sequence[Message], CallForm], str]) -> CallForm:
    """How a template wants arguments, found by rendering a call. render: raises where the template fails."""
    forms: tuple[CallForm, ...] = ("object", "text")
    for form in forms:
        try:
            text = render(_PROBE, form)
        except Exception:  # whatever a template raises for what it does not expect
            continue
        # An object that Python wrote, and not the template as JSON, has single quotes.
        if _NAME in text and _VALUE in text and f"'{_VALUE}'" not in text:
            return form
    return "none"


def call_value(call: ToolCall, form: CallForm) -> dict[str, Any]:
    """The call as templates expect it."""
    text = call.function.arguments_text
    arguments = text if form == "text" else read_arguments(text)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def with_one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The conversation with every call in a message of its own, and its result after it, for templates that want that.

    Results that answer no call of the message before them stay where they are.
    """
    written: list[Message] = []
    moved: set[int] = set()  # results that stand after their calls already
    for i, message in enumerate(messages):
        calls = message.tool_calls or []
        if i in moved:
            continue
        if len(calls) < 2:
            written.append(message)
            continue
        results = list(takewhile(lambda j: messages[j].role == "tool", range(i + 1, len(messages))))
        for number, call in enumerate(calls):
            rest = {} if number == 0 else {"content": None, "reasoning_content": None}
            written.append(message.model_copy(update={"tool_calls": [call], **rest}))
            answers = [j for j in results if messages[j].tool_call_id == call.id and j not in moved]
            written += [messages[j] for j in answers]
            moved.update(answers)
    return written


def read_arguments(text: str) -> dict[str, Any]:
    """The object that the text begins with. One that is cut has what stands before the cut.

    Any other text becomes the one argument `arguments`: the model has to see what it wrote.
    """
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {"arguments": text}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": text}
