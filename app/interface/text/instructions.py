"""Functions, calls and response formats as text, for chat templates that know none of them."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import orjson

from app.interface.functions.dialects import HERMES
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


def with_calls_as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation for a template that knows no functions, in Hermes' dialect: instructions, calls, results."""
    written: list[Message] = []
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{_text(message)}\n</tool_response>"
            if written and written[-1].role == "user" and _text(written[-1]).startswith("<tool_response>"):
                written[-1] = Message(role="user", content=f"{_text(written[-1])}\n{text}")
            else:
                written.append(Message(role="user", content=text))
        elif message.tool_calls:
            calls = [HERMES.call_text(call.function.name, call.function.arguments_text) for call in message.tool_calls]
            written.append(Message(role="assistant", content="\n".join([*filter(None, [_text(message)]), *calls])))
        else:
            written.append(message)
    if tools:
        listed = "\n".join(orjson.dumps(tool).decode() for tool in definitions(tools))
        instructions = (
            "You can call functions. To call one, answer with a JSON object between tags, and nothing else:\n"
            f"{HERMES.call_text('<its name>', '{<its arguments>}')}\n"
            f"These functions can be called:\n{listed}"
        )
        written = _with_system(written, instructions)
    return written


def with_format_instructions(messages: Sequence[Message], form: ResponseFormat | None) -> Sequence[Message]:
    """The conversation with the format's name and description; the grammar alone holds the answer to its schema."""
    if form is None or form.json_schema is None or not form.json_schema.description:
        return messages
    return _with_system(messages, f"The answer's format is {form.json_schema.name}: {form.json_schema.description}")


def with_one_system_message(messages: Sequence[Message]) -> list[Message]:
    """The conversation for a template that shows no system message but the first: later ones are the user's."""
    leading = list(takewhile(is_system, messages))
    rest = [one.model_copy(update={"role": "user"}) if is_system(one) else one for one in messages[len(leading) :]]
    if len(leading) > 1:
        leading = [leading[0].model_copy(update={"content": "\n\n".join(map(_text, leading))})]
    return [*leading, *rest]


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
