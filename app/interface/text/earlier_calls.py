"""Calls of earlier turns as a chat template takes them, however badly their arguments ended.

OpenAI's API has arguments as text, most templates want the object, some the text. What a limit has cut is completed,
so that a conversation goes on after it. It knows no particular template.
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
    """The call as templates expect it."""
    text = call.function.arguments_text
    arguments = text if form == "text" else read_arguments(text)
    return {"id": call_id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def short_id(call_id: str) -> str:
    """An id of the length that all templates take; the same for the same id."""
    is_short = len(call_id) == ID_CHARACTERS and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:ID_CHARACTERS]


def with_calls_as_text(
    values: Sequence[Value], dialect: Written, written: Callable[[str], Any], *, shows_results: bool
) -> list[Value]:
    """The conversation for a template that has no place for calls. values: as templates get them, with marks in them.

    dialect: the model's own, whose marks stay control tokens. written: a text as the template takes content.
    shows_results: whether it has a place for results; else they are the user's.
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
