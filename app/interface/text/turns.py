"""A conversation for templates that refuse it as it is: many want turns of the user and the assistant that alternate.

It knows the values that templates get, with marks in them, and no particular template.
"""

from collections.abc import Callable, Sequence
from typing import Any

from app.interface.text.template_abilities import Value


def joined(messages: Sequence[Value]) -> list[Value]:
    """The messages with consecutive ones of the user, and of the system, as one each."""
    return _joined(messages, ("user", "system", "developer"))


def alternating(messages: Sequence[Value], written: Callable[[str], Any]) -> list[Value]:
    """The messages as turns: those of the assistant are joined too, and what two turns need between them is added.

    That is an empty message of the user before an assistant that begins, and an assistant's "OK." where the user speaks
    right after a call's result. written: a text as the template takes content.
    """
    said = [one for one in messages if one["role"] != "assistant" or one["content"] or one.get("tool_calls")]
    turns: list[Value] = []
    last = "assistant"
    for message in _joined(said, ("user", "system", "developer", "assistant")):
        role = message["role"]
        if role in ("user", "assistant") and "tool_calls" not in message:
            if role == last:
                other = ("user", "") if role == "assistant" else ("assistant", "OK.")
                turns.append({"role": other[0], "content": written(other[1])})
            last = role
        turns.append(message)
    return turns


def appended(content: Any, text: str, between: str = "\n\n") -> Any:
    """The content, a text or parts, with more text."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}] if text else content
    return f"{content}{between}{text}" if content and text else content or text


def _joined(messages: Sequence[Value], roles: Sequence[str]) -> list[Value]:
    turns: list[Value] = []
    for message in messages:
        last = turns[-1] if turns else None
        if last is None or message["role"] != last["role"] or message["role"] not in roles or "tool_calls" in last:
            turns.append(message)
            continue
        first, second = last["content"], message["content"]
        if isinstance(second, list):
            content = [*(first if isinstance(first, list) else [{"type": "text", "text": first}]), *second]
        else:
            content = appended(first, second)
        turns[-1] = {**last, **message, "content": content}
    return turns
