"""Files that go with a question: the service reads them, and says what they cost. Knows nothing of the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openai import OpenAI

from app.client.account import ChatError
from app.client.turns import File

_MOST_COMPLETIONS = 50


def read(client: OpenAI, model: str, argument: str) -> tuple[File, str]:
    """Has the service read a file; returns it, and a line about it. Raises ChatError, OpenAIError."""
    path = Path(argument).expanduser()
    if not path.is_file():
        raise ChatError(f"{argument}: there is no such file.")
    try:
        with path.open("rb") as content:
            found: Any = client.post(
                "/documents",
                body={"model": model},
                files=[("file", (path.name, content))],
                options={"headers": {"Content-Type": "multipart/form-data"}},
                cast_to=object,
            )
    except OSError as error:
        raise ChatError(f"{argument}: {error.strerror}") from error
    notes = " ".join(found["notes"])
    if not found["text"]:
        raise ChatError(f"{found['filename']} has no text. {notes}".strip())
    if not found["fits"]:
        sizes = f"{found['tokens']:,} tokens, and the context of {model} {found['context_tokens']:,}"
        raise ChatError(f"{found['filename']} has {sizes}: with a question it does not fit. Attach a part of it.")
    seconds = found["expected_s"], found.get("attention_s") or 0.0
    return File(found["filename"], found["text"], found["pages"], *seconds), f"{_line(found)} {notes}".strip()


def together(files: Sequence[File]) -> str:
    """Says which files go with a question; of several, also how long they are read."""
    names = ", ".join(file.name for file in files)
    known = [file.expected_s for file in files if file.expected_s is not None]
    if len(files) < 2 or len(known) < len(files):
        return names or "no file"
    rest_s = sum(known) - sum(file.attention_s for file in files)
    return f"{names}, together{_until(rest_s + sum(file.attention_s**0.5 for file in files) ** 2)}"


def completions(typed: str) -> Iterator[str]:
    """Yields the paths that begin with `typed`, folders with a / behind."""
    folder, slash, begun = typed.rpartition("/")
    with suppress(OSError, RuntimeError):  # no such folder, or no such user's home
        entries = [one for one in Path(f"{folder}{slash}" or ".").expanduser().iterdir() if one.name.startswith(begun)]
        for one in sorted(entries)[:_MOST_COMPLETIONS]:
            if begun or not one.name.startswith("."):
                yield f"{folder}{slash}{one.name}{'/' if one.is_dir() else ''}"


def parts(files: Sequence[File], question: str, *, is_item: bool) -> list[Mapping[str, Any]]:
    """Returns the content of a message. is_item: as an item of a response, not as a chat message."""
    given = [{"filename": file.name, "text": file.text, "pages": file.pages} for file in files]
    if is_item:
        return [*({"type": "input_file", **one} for one in given), {"type": "input_text", "text": question}]
    return [*({"type": "file", "file": one} for one in given), {"type": "text", "text": question}]


def named(files: Sequence[File], text: str) -> str:
    """Returns a message's text with the names of its files before it."""
    return " ".join([*(f"[{file.name}]" for file in files), text])


def _line(found: Mapping[str, Any]) -> str:
    pages = {None: "", 1: "1 page, "}.get(found["pages"], f"{found['pages']} pages, ")
    when = "" if found["expected_s"] is None else f",{_until(found['expected_s'])}"
    return f"{found['filename']}: {pages}{found['tokens']:,} of {found['context_tokens']:,} tokens{when}."


def _until(seconds: float) -> str:
    return f" about {max(1, round(seconds))} s until the first word"
