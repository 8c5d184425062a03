"""Reads conversations: a JSON list in ShareGPT's form, or OpenAI messages, one conversation a line.

ShareGPT: `[{"id": ..., "conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}]`.
OpenAI: a line of `{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}` each.
A conversation ends before its first message that has no text, or another role.

Knows nothing of tokens, and not which conversations are used.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROLES: Final[Mapping[str, str]] = {
    **{"human": "user", "user": "user", "system": "system", "developer": "system"},
    **{"gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "model": "assistant"},
}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON may name and no text may have."""


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
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text: {error}") from error
    records = _json_list(path, text) if text.lstrip().startswith("[") else _json_lines(path, text)
    found: list[Conversation] = []
    reason = ""
    for number, (place, record) in enumerate(records):
        try:
            found.append(_conversation(str(number), record))
        except DataError as error:
            reason = reason or f": {place}: {error}"
    if not found:
        raise DataError(f"{path} has no conversation with a user's message and its answer{reason}")
    return Conversations(tuple(found), len(records) - len(found))


def _json_list(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} begins as a JSON list and is none: {error}") from error
    return [(f"entry {number}", record) for number, record in enumerate(records)]


def _json_lines(path: Path, text: str) -> list[tuple[str, Any]]:
    records = []
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would end lines within JSON's texts too
        if line.strip():
            try:
                records.append((f"line {number}", json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number} is no JSON: {error}. A JSON list in ShareGPT's form is needed, "
                    "or OpenAI messages, one conversation a line"
                ) from error
    return records


def _conversation(default_id: str, record: Any) -> Conversation:
    """One record. Raises DataError if it does not begin with a user's message and its answer."""
    messages = _messages(record)
    system = ""
    if messages and messages[0][0] == "system":
        system, messages = messages[0][1], messages[1:]
    turns = []
    for (asker, prompt), (answerer, answer) in zip(messages[::2], messages[1::2], strict=False):
        if (asker, answerer) != ("user", "assistant"):
            break
        turns.append(Turn(prompt, answer))
    if not turns:
        raise DataError("it does not begin with a user's message and its answer")
    return Conversation(_whole(str(record.get("id", default_id))), system, tuple(turns))


def _messages(record: Any) -> list[tuple[str, str]]:
    """Pairs of role and text, up to the first message that has no text or another role, as a tool's."""
    if not isinstance(record, dict) or not ({"conversations", "messages"} & set(record)):
        raise DataError('an object with "conversations" (ShareGPT) or "messages" (OpenAI) is needed')
    entries = record["conversations"] if "conversations" in record else record["messages"]
    if not isinstance(entries, list):
        raise DataError("its messages are no list")
    messages = []
    for number, entry in enumerate(entries):
        text = _text(entry.get("value", entry.get("content"))) if isinstance(entry, dict) else None
        if text is None:
            if number == 0:
                raise DataError('message 0: needs "from" and "value", or "role" and "content", with a text')
            break
        role = _ROLES.get(str(entry.get("from", entry.get("role"))).lower())
        if role is None:
            break
        messages.append((role, text))
    return messages


def _text(content: Any) -> str | None:
    """A message's text, or its parts' if all are text; None: it has another content, as an image or a tool's call."""
    if isinstance(content, str):
        return _whole(content)
    if not isinstance(content, list) or not content:
        return None
    parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return _whole("\n".join(texts)) if len(texts) == len(parts) else None


def _whole(text: str) -> str:
    """The text without halves of characters, which no tokenizer takes."""
    return _SURROGATE.sub("\ufffd", text)
