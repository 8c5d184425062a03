"""Reads conversations: a JSON list in ShareGPT's form, or OpenAI messages, one conversation a line.

ShareGPT: `[{"id": ..., "conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}]`.
OpenAI: a line of `{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}` each.

Knows nothing of tokens, and not which conversations are used.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROLES: Final[Mapping[str, str]] = {
    **{"human": "user", "user": "user", "system": "system"},
    **{"gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant"},
}


class DataError(ValueError):
    """The file holds no conversations that can be used; the message names the place."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and its answer."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation: at least one turn; `system` is empty if there is no system message."""

    id: str
    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Conversations:
    """The conversations of a file."""

    usable: tuple[Conversation, ...]
    unanswered: int
    """Conversations that do not begin with a user's message and its answer."""


def read_conversations(path: Path) -> Conversations:
    """The file's conversations. Raises DataError, OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text: {error}") from error
    records = _json_list(path, text) if text.lstrip().startswith("[") else _json_lines(path, text)
    found = [_conversation(f"{path}, {place}", str(number), record) for number, (place, record) in enumerate(records)]
    usable = tuple(one for one in found if one is not None)
    if not usable:
        raise DataError(f"{path} has no conversation with a user's message and its answer")
    return Conversations(usable, len(found) - len(usable))


def _json_list(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        records = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path} begins as a JSON list and is none: {error}") from error
    return [(f"entry {number}", record) for number, record in enumerate(records)]


def _json_lines(path: Path, text: str) -> list[tuple[str, Any]]:
    records = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                records.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number} is no JSON: {error}. A JSON list in ShareGPT's form is needed, "
                    "or OpenAI messages, one conversation a line"
                ) from error
    return records


def _conversation(place: str, default_id: str, record: Any) -> Conversation | None:
    """One record; None if it does not begin with a user's message and its answer. Raises DataError."""
    messages = _messages(place, record)
    system = ""
    if messages and messages[0][0] == "system":
        system, messages = messages[0][1], messages[1:]
    turns = []
    for (asker, prompt), (answerer, answer) in zip(messages[::2], messages[1::2], strict=False):
        if (asker, answerer) != ("user", "assistant"):
            break
        turns.append(Turn(prompt, answer))
    return Conversation(str(record.get("id", default_id)), system, tuple(turns)) if turns else None


def _messages(place: str, record: Any) -> list[tuple[str, str]]:
    """Pairs of role and text."""
    if not isinstance(record, dict) or not ({"conversations", "messages"} & set(record)):
        raise DataError(f'{place}: an object with "conversations" (ShareGPT) or "messages" (OpenAI) is needed')
    entries, role_key, text_key = (
        (record["conversations"], "from", "value")
        if "conversations" in record
        else (record["messages"], "role", "content")
    )
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise DataError(f"{place}: its messages are no list")
    return [_message(f"{place}, message {number}", entry, role_key, text_key) for number, entry in enumerate(entries)]


def _message(place: str, entry: Any, role_key: str, text_key: str) -> tuple[str, str]:
    if not isinstance(entry, dict) or not isinstance(entry.get(text_key), str):
        raise DataError(f'{place}: needs "{role_key}" and "{text_key}" with a text')
    # another role is a tool's, for example: the conversation ends before it
    return _ROLES.get(str(entry.get(role_key)), "other"), entry[text_key]
