"""Functions, response formats and system messages as text, for chat templates that have no place for them."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import orjson

from app.interface.functions.dialects import HERMES
from app.interface.text.template_abilities import Abilities
from app.interface.wire.chat import Message, ResponseFormat, Tool


def definitions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The functions as templates and models expect them."""
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
    """The conversation for a template that takes no functions, which are called in Hermes' dialect."""
    listed = "\n".join(orjson.dumps(tool).decode() for tool in definitions(tools))
    instructions = (
        "You can call functions. To call one, answer with a JSON object between tags, and nothing else:\n"
        f"{HERMES.call_text('<its name>', '{<its arguments>}')}\n"
        f"These functions can be called:\n{listed}"
    )
    return _with_system(messages, instructions)


def with_format_instructions(messages: Sequence[Message], form: ResponseFormat | None) -> Sequence[Message]:
    """The conversation with the format's name and description; the grammar alone holds the answer to its schema."""
    if form is None or form.json_schema is None or not form.json_schema.description:
        return messages
    return _with_system(messages, f"The answer's format is {form.json_schema.name}: {form.json_schema.description}")


def with_shown_system(messages: Sequence[Message], abilities: Abilities) -> list[Message]:
    """The conversation with no system message that the template would not show.

    Several that it begins with become one, and later ones, or all where the template has no place for any, the user's.
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
    """Whether its role is a system role, by OpenAI's older or newer name."""
    return message.role in ("system", "developer")


def _with_system(messages: Sequence[Message], instructions: str) -> list[Message]:
    """The conversation with these instructions at the end of its system message, or as one."""
    if messages and is_system(messages[0]):
        return [Message(role="system", content=f"{_text(messages[0])}\n\n{instructions}"), *messages[1:]]
    return [Message(role="system", content=instructions), *messages]


def _text(message: Message) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)
