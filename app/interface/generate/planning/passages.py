"""Passages that were found before an answer: how they stand in the prompt, and which of them an answer cites.

Documents that were read whole are passages too, all of them, so that they are cited alike.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from app.documents.document import framed as framed_document
from app.interface.wire.chat import Message
from app.interface.wire.response_items import FoundPassageItem
from app.interface.wire.responses import FoundPassage

_FRAME: Final = re.compile(r"<(?=/?passages\b)", re.IGNORECASE)
_CITED: Final = re.compile(r"\[(\d{1,3})\]")
_ASKED_WHOLE: Final = (
    "Answer from these documents if they say something about it, and cite each part that you use, as in [1].\n\n"
)
_ASKED: Final = "Answer from these passages if they say something about it, and cite each that you use, as in [1]."


def framed(results: Sequence[FoundPassageItem]) -> str:
    """Returns the passages for the prompt, behind the question. No passage can end their frame."""
    shown = "\n\n".join(f"[{number}] {_place(one)}\n{one.text}" for number, one in enumerate(results, 1) if one.text)
    if not shown:
        return "<passages>\nNothing was found.\n</passages>"
    return f"<passages>\n{_FRAME.sub('&lt;', shown)}\n</passages>\n{_ASKED}"


def whole_documents(results: Sequence[FoundPassageItem | FoundPassage]) -> str:
    """Returns documents that are read whole, for the prompt before the first question, framed as attached files are."""
    numbered = list(enumerate(results, 1))
    frames = list[str]()
    for _, parts in groupby(numbered, lambda one: one[1].file_id):
        found = list(parts)
        text = "\n".join(f"{_numbered(number, one)}\n{one.text}" for number, one in found)
        frames.append(framed_document(found[0][1].filename, text))
    return "".join([*frames, _ASKED_WHOLE])


def led_by(messages: Sequence[Message], documents: str) -> list[Message]:
    """Returns messages with documents before the first question; empty: there are none."""
    first = next((place for place, one in enumerate(messages) if one.role == "user"), None)
    if not documents or first is None:
        return [*messages]
    question = messages[first]
    led = question.model_copy(update={"content": f"{documents}{question.content}"})
    return [*messages[:first], led, *messages[first + 1 :]]


def drop_uncited(response: dict[str, Any]) -> None:
    """Empties the texts of whole documents before a response, but of what it cites: their collection has them."""
    said = [item for item in response["output"] if item["type"] == "message"]
    text = "".join(part["text"] for item in said for part in item["content"])
    cited = {int(found[1]) for found in _CITED.finditer(text)}
    for item in response["output"]:
        for number, one in enumerate(item["results"] if item.get("whole") else (), 1):
            if number not in cited:
                one["text"] = one["heading"] = ""


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


def _numbered(number: int, passage: FoundPassageItem | FoundPassage) -> str:
    return f"[{number}]" if passage.page is None else f"[{number}] page {passage.page}"


def _place(passage: FoundPassageItem) -> str:
    page = f", page {passage.page}" if passage.page is not None else ""
    heading = f": {passage.heading}" if passage.heading else ""
    return f"{passage.filename}{page}{heading}"
