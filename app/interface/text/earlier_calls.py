"""Converts calls of earlier turns to the form that a chat template expects, even if their arguments were truncated.

OpenAI's API has arguments as text; most templates want the object, some the text. Truncated arguments are completed, so
that the conversation can continue. It knows no particular template.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from pydantic_core import from_json

from app.interface.functions.dialect import Written
from app.interface.text.template_abilities import ID_CHARACTERS, CallForm, Value
from app.interface.text.turns import appended
from app.interface.wire.chat import Message, ToolCall


def call_value(call: ToolCall, form: CallForm, call_id: str) -> Value:
    """Returns the call as templates expect it."""
    text = call.function.arguments_text
    arguments = text if form == "text" else read_arguments(text)
    return {"id": call_id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def short_id(call_id: str) -> str:
    """Returns an id of a length that all templates accept, deterministically."""
    is_short = len(call_id) == ID_CHARACTERS and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:ID_CHARACTERS]


def with_calls_as_text(
    values: Sequence[Value], dialect: Written, written: Callable[[str], Any], *, shows_results: bool
) -> list[Value]:
    """Rewrites calls as text for a template that does not support them. values: as templates get them, with marks.

    dialect: the model's own, whose marks stay control tokens. written: converts a text to the template's content.
    shows_results: whether the template supports results; otherwise they become user messages.
    """
    turns: list[Value] = []
    after_result = False
    for value in values:
        is_result = value["role"] == "tool" and not shows_results
        if is_result:
            text = f"<tool_response>\n{''.join(_texts(value['content']))}\n</tool_response>"
            value = {"role": "user", "content": written(text)}
            if after_result:
                value["content"] = appended(turns.pop()["content"], text, "\n")
        elif calls := value.get("tool_calls"):
            text = dialect.calls_text([(call["function"]["name"], call["function"]["arguments"]) for call in calls])
            rest = {key: one for key, one in value.items() if key != "tool_calls"}
            value = {**rest, "content": appended(value["content"], text, "\n")}
        turns.append(value)
        after_result = is_result
    return turns


def _texts(content: Any) -> list[str]:
    return [part["text"] for part in content] if isinstance(content, list) else [content]


def with_one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Splits messages so that each call has its own, followed by its result, for templates that need that.

    Results that answer no call of the message before them stay where they are.
    """
    written: list[Message] = []
    moved: set[int] = set()  # results already placed after their calls
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
    """Parses an object of arguments; a truncated one keeps what stands before the cut.

    Any other text becomes the single argument `arguments`, so that the model sees what it wrote.
    """
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {"arguments": text}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": text}
