"""Passages that were found before an answer: how they stand in the prompt, and which of them an answer cites."""

import re
from collections.abc import Sequence
from typing import Any, Final

from app.interface.wire.response_items import FoundPassageItem
from app.interface.wire.responses import FoundPassage

_FRAME: Final = re.compile(r"<(?=/?passages\b)", re.IGNORECASE)
_CITED: Final = re.compile(r"\[(\d{1,3})\]")
_ASKED: Final = "Answer from these passages if they say something about it, and cite each that you use, as in [1]."


def framed(results: Sequence[FoundPassageItem]) -> str:
    """Returns the passages for the prompt, behind the question. No passage can end their frame."""
    shown = "\n\n".join(f"[{number}] {_place(one)}\n{one.text}" for number, one in enumerate(results, 1))
    if not results:
        return "<passages>\nNothing was found.\n</passages>"
    return f"<passages>\n{_FRAME.sub('&lt;', shown)}\n</passages>\n{_ASKED}"


def citations(text: str, results: Sequence[FoundPassage]) -> list[dict[str, Any]]:
    """Returns an annotation for each citation of a passage in an answer, in order."""
    found = list[dict[str, Any]]()
    for cited in _CITED.finditer(text):
        number = int(cited[1])
        if 1 <= number <= len(results):
            passage = results[number - 1]
            found.append({
                "type": "file_citation",
                "index": cited.end(),
                "file_id": passage.file_id,
                "filename": passage.filename,
                "page": passage.page,
                "result": number - 1,
            })  # fmt: skip
    return found


def _place(passage: FoundPassageItem) -> str:
    page = f", page {passage.page}" if passage.page is not None else ""
    heading = f": {passage.heading}" if passage.heading else ""
    return f"{passage.filename}{page}{heading}"
