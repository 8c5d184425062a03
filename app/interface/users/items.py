"""Converts a request's items to the form in which they are stored and returned."""

import uuid
from collections.abc import Sequence
from typing import Any

from app.interface.users.texts import Item
from app.interface.wire.response_items import FileSearchCallItem, HostedCallItem, InputItem

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
_KEPT = ("type", "call_id", "name", "namespace", "arguments", "input", "output", "summary", "content")
"""The stored fields of items other than messages; fields that only an answer has are dropped."""
_KEPT_OF_PARTS = ("type", "text", "logprobs", "filename", "file_id", "pages")
"""A file's text is stored as it was read: then the conversation goes on, whatever becomes of the file."""


def items_of(given: str | Sequence[InputItem]) -> list[Item]:
    """Converts a request's items to stored items with new ids."""
    if isinstance(given, str):
        return [_message("user", [{"type": "input_text", "text": given}])]
    kept = [item for item in given if not isinstance(item, (HostedCallItem, FileSearchCallItem))]
    return [_item(item.model_dump(exclude_none=True, by_alias=True)) for item in kept]


def _item(values: dict[str, Any]) -> Item:
    kind = values.get("type", "message")
    if kind == "message":
        content = values["content"]
        if isinstance(content, str):
            text = "output_text" if values["role"] == "assistant" else "input_text"
            content = [{"type": text, "text": content}]
        return _message(values["role"], content)
    said = {name: values[name] for name in _KEPT if name in values}
    if kind == "reasoning":
        said = {"summary": []} | said
    elif kind.endswith("_output"):
        said = {name: value for name, value in said.items() if name not in ("name", "namespace")}
    return {**said, "id": _new_id(kind), "status": "completed"}


def _message(role: str, content: list[dict[str, Any]]) -> Item:
    kept = [{name: part[name] for name in _KEPT_OF_PARTS if name in part} for part in content]
    parts = [{**part, "annotations": []} if part["type"] == "output_text" else part for part in kept]
    return {"id": _new_id("message"), "type": "message", "role": role, "status": "completed", "content": parts}


def _new_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
