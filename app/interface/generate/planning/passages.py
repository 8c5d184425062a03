"""Passages that were found before an answer: how they stand in the prompt, and which of them an answer cites.

Documents that were read whole are passages too, all of them, so that they are cited alike.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from app.documents.document import framed as framed_document
from app.interface.wire.chat import Message
from app.interface.wire.response_items import FoundPassageItem
from app.interface.wire.responses import FoundPassage

_FRAME: Final = re.compile(r"<(?=/?passages\b)", re.IGNORECASE)
_CODE: Final = r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1|\Z)|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)"
"""In Markdown: fenced blocks, the last of which may be open, and code spans. An index such as `a[1]` cites nothing."""
_LIST: Final = r"[\[【［]\s*(\d{1,3}(?:\s*[,;，、–—-]\s*\d{1,3}){0,31})\s*[\]】］]"
_CODE_OR_CITED: Final = re.compile(f"{_CODE}|{_LIST}", re.MULTILINE | re.DOTALL)
_RANGE: Final = re.compile(r"(\d+)(?:\s*[–—-]\s*(\d+))?")
_ASKED_WHOLE: Final = (
    "Answer from these documents if they say something about it, and cite each part that you use, as in [1].\n\n"
)
_ASKED: Final = "Answer from these passages if they say something about it, and cite each that you use, as in [1]."


def framed(results: Sequence[FoundPassageItem | FoundPassage]) -> str:
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
    said = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    for item in response["output"]:
        results = item["results"] if item.get("whole") else ()
        cited = {number for text in said if results for number, _ in _cited(text, len(results))}
        for number, one in enumerate(results, 1):
            if number not in cited:
                one["text"] = one["heading"] = ""


def citations(text: str, results: Sequence[FoundPassageItem | FoundPassage]) -> list[dict[str, Any]]:
    """Returns an annotation for each citation of a passage in an answer, in order: of `[1, 3-5]` four."""
    return [
        {
            "type": "file_citation",
            "index": end,
            "file_id": results[number - 1].file_id,
            "filename": results[number - 1].filename,
            "page": results[number - 1].page,
            "result": number - 1,
        }
        for number, end in _cited(text, len(results))
    ]


def _cited(text: str, count: int) -> Iterator[tuple[int, int]]:
    """Yields the number of each passage that a text cites, and where the citation ends. count: of the passages."""
    for found in _CODE_OR_CITED.finditer(text):
        for first, last in _RANGE.findall(found[3] or ""):
            numbers = range(int(first), int(last or first) + 1)
            if 1 <= numbers.start < numbers.stop <= count + 1:
                yield from ((number, found.end()) for number in numbers)


def _numbered(number: int, passage: FoundPassageItem | FoundPassage) -> str:
    return f"[{number}]" if passage.page is None else f"[{number}] page {passage.page}"


def _place(passage: FoundPassageItem | FoundPassage) -> str:
    page = f", page {passage.page}" if passage.page is not None else ""
    heading = f": {passage.heading}" if passage.heading else ""
    return f"{passage.filename}{page}{heading}"
