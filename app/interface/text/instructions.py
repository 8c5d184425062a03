"""Writes functions, response formats and system messages as text, for chat templates that do not support them."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import orjson

from app.interface.functions.dialects import HERMES
from app.interface.text.template_abilities import Abilities
from app.interface.wire.answer_forms import ResponseFormat
from app.interface.wire.chat import Message
from app.interface.wire.tools import Tool


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Returns the functions as templates and models expect them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def with_tool_instructions(messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
    """Adds the functions to the system message, in Hermes' dialect, for a template without functions."""
    listed = "\n".join(orjson.dumps(tool).decode() for tool in definitions(tools))
    instructions = (
        "You can call functions. To call one, answer with a JSON object between tags, and nothing else:\n"
        f"{HERMES.call_text('<its name>', '{<its arguments>}')}\n"
        f"These functions can be called:\n{listed}"
    )
    return _with_system(messages, instructions)


def with_format_instructions(messages: Sequence[Message], form: ResponseFormat | None) -> Sequence[Message]:
    """Adds the format's name and description to the system message; only the grammar enforces the schema."""
    if form is None or form.json_schema is None or not form.json_schema.description:
        return messages
    return _with_system(messages, f"The answer's format is {form.json_schema.name}: {form.json_schema.description}")


def with_shown_system(messages: Sequence[Message], abilities: Abilities) -> list[Message]:
    """Rewrites system messages that the template would not show.

    Several leading ones are merged; later ones become user messages, or all if the template does not support any.
    """
    leading = list(takewhile(is_system, messages))
    rest = list(messages[len(leading) :])
    if not abilities.late_system:
        rest = [_as_users(one) if is_system(one) else one for one in rest]
    if len(leading) > 1 and not abilities.two_systems:
        leading = [leading[0].model_copy(update={"content": "\n\n".join(map(_text, leading))})]
    return [*(leading if abilities.system else map(_as_users, leading)), *rest]


def _as_users(message: Message) -> Message:
    return message.model_copy(update={"role": "user"})


def is_system(message: Message) -> bool:
    """Whether the role is a system role, by OpenAI's older or newer name."""
    return message.role in ("system", "developer")


def _with_system(messages: Sequence[Message], instructions: str) -> list[Message]:
    """Appends instructions to the system message, or adds one."""
    if messages and is_system(messages[0]):
        return [Message(role="system", content=f"{_text(messages[0])}\n\n{instructions}"), *messages[1:]]
    return [Message(role="system", content=instructions), *messages]


def _text(message: Message) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)
