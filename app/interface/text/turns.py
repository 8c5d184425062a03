"""Rewrites a conversation for templates that refuse it: many need alternating turns of user and assistant.

It knows the values that templates get, with marks in them, and no particular template.
"""

from collections.abc import Callable, Sequence
from typing import Any

from app.interface.text.template_abilities import Value


def joined(messages: Sequence[Value]) -> list[Value]:
    """Merges consecutive messages of the user, and of the system."""
    return _joined(messages, ("user", "system", "developer"))


def alternating(messages: Sequence[Value], written: Callable[[str], Any]) -> list[Value]:
    """Makes user and assistant alternate: merges the assistant's messages too, and inserts missing ones.

    Inserted are an empty user message before a leading assistant, and an assistant's "OK." between a call's result and
    a user message. written: converts a text to the template's content.
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
    """Appends text to content, which is a text or parts."""
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
