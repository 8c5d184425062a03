"""Exports a conversation as Markdown. Knows no HTTP and no accounts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

_SPEAKERS = {"user": "You", "assistant": "Answer", "system": "System", "developer": "System"}


def as_markdown(title: str, created: int, items: Sequence[dict[str, Any]]) -> str:
    """Returns title, day and messages. created: Unix seconds. items: as the API shows them."""
    day = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%d")
    parts = [f"# {title or 'Conversation'}", f"*{day}*"]
    for item in items:
        match item["type"]:
            case "message":
                text = "\n".join(_said(part) for part in item["content"])
                parts += [f"## {_SPEAKERS[item['role']]}", text]
            case "function_call":
                parts += [f"## Call of `{item['name']}`", _fenced(item["arguments"])]
            case "custom_tool_call":
                parts += [f"## Call of `{item['name']}`", _fenced(item["input"])]
            case "reasoning":
                text = "\n".join(part.get("text", "") for part in item.get("content") or item.get("summary") or ())
                parts += ["## Thought", text] if text else []
            case "file_search_call":
                names = dict.fromkeys(str(one.get("filename")) for one in item.get("results") or () if one.get("text"))
                parts += [f"*Found in: {', '.join(names)}*"] if names else []
            case _:
                output = item.get("output") or ""
                text = output if isinstance(output, str) else "\n".join(map(_said, output))
                parts += ["## Result", _fenced(text)]
    return "\n\n".join(parts) + "\n"


def _said(part: dict[str, Any]) -> str:
    return f"[File: {part['filename']}]" if part["type"] == "input_file" else part.get("text", "")


def _fenced(text: str) -> str:
    """Returns a code block whose fence is longer than any run of backticks in the text."""
    runs = [len(run) for run in "".join(c if c == "`" else " " for c in text).split()]
    fence = "`" * max([2, *runs, 2]) + "`"
    return f"{fence}\n{text}\n{fence}"
