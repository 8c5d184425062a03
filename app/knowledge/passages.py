"""Cuts a document into passages, and writes passages with their vectors as bytes.

A passage is a few paragraphs under one heading, so that it can be understood alone, and overlaps the one before it, so
that no answer is cut in two.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.documents.document import Section

PASSAGE_CHARACTERS: Final = 900
"""The longest passage, about 200 tokens of English: small encoders read 256."""
OVERLAP_CHARACTERS: Final = 150
_HEADING: Final = re.compile(r"^#{1,6} +(.+?)[ #]*$", re.MULTILINE)
_MOST_HEADING_CHARACTERS: Final = 120
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document."""

    text: str = field(repr=False)
    page: int | None = None
    """Where it begins, from 1; None: the document has no pages."""
    heading: str = field(default="", repr=False)
    """The last heading before it; empty: there is none, or the passage begins with it."""
    begin: int | None = None
    """Its place in the document, in characters; None: unknown."""

    @property
    def searched(self) -> str:
        """What is embedded and searched."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text


def cut(sections: Sequence[Section]) -> list[Passage]:
    """Cuts a document into passages, in order."""
    from semantic_text_splitter import MarkdownSplitter  # only who adds documents needs it

    text = "\n\n".join(section.text for section in sections)
    begins, begin = list[int](), 0
    for section in sections:
        begins.append(begin)
        begin += len(section.text) + 2
    headings = [(found.start(), found[1][:_MOST_HEADING_CHARACTERS]) for found in _HEADING.finditer(text)]
    heading_begins = [place for place, _ in headings]
    passages = list[Passage]()
    for place, piece in MarkdownSplitter(PASSAGE_CHARACTERS, overlap=OVERLAP_CHARACTERS).chunk_indices(text):
        before = bisect_right(heading_begins, place) - 1
        is_at_heading = before >= 0 and heading_begins[before] == place
        heading = "" if before < 0 or is_at_heading else headings[before][1]
        page = sections[bisect_right(begins, place) - 1].page
        passages.append(Passage(piece, page, heading, place))
    return passages


def without_overlap(passages: Sequence[Passage]) -> Iterator[Passage]:
    """Yields a document's passages in order, each without what the one before it has of its text, and no empty one."""
    end = 0
    for passage in passages:
        text = passage.text
        if passage.begin is not None:
            text = text[max(0, end - passage.begin) :]
            end = max(end, passage.begin + len(passage.text))
        if text.strip():
            yield replace(passage, text=text)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of length 1, each as int8 with a scale."""

    codes: NDArray[np.int8] = field(repr=False)
    """[n, dimensions]"""
    scales: NDArray[np.float32] = field(repr=False)
    """[n]"""

    @classmethod
    def of(cls, vectors: NDArray[np.float32]) -> "Vectors":
        """Quantizes vectors [n, dimensions]."""
        largest = np.abs(vectors).max(axis=1, initial=0.0)
        scales = (np.where(largest > 0, largest, 1.0) / 127).astype(np.float32)
        return cls(np.rint(vectors / scales[:, None]).astype(np.int8), scales)

    @classmethod
    def joined(cls, several: Sequence["Vectors"]) -> "Vectors":
        return cls(np.concatenate([each.codes for each in several]), np.concatenate([each.scales for each in several]))

    def similarities(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the dot product with a query [dimensions] for each vector: [n]."""
        similar: NDArray[np.float32] = (self.codes @ query.astype(np.float32)) * self.scales
        return similar


def written(passages: Sequence[Passage], vectors: Vectors | None) -> bytes:
    """Returns passages with their vectors as bytes; None: without vectors."""
    header = orjson.dumps({
        "texts": [one.text for one in passages],
        "pages": [one.page for one in passages],
        "headings": [one.heading for one in passages],
        "begins": [one.begin for one in passages],
        "dimensions": 0 if vectors is None else vectors.codes.shape[1],
    })  # fmt: skip
    numbers = b"" if vectors is None else vectors.scales.astype("<f4").tobytes() + vectors.codes.tobytes()
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + numbers


def read(data: bytes) -> tuple[list[Passage], Vectors | None]:
    """Reads what `written` has made. Raises ValueError or KeyError for anything else."""
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = orjson.loads(data[_LENGTH_BYTES:begin])
    begins = header.get("begins") or [None] * len(header["texts"])  # an older version has not written them
    columns = header["texts"], header["pages"], header["headings"], begins
    passages = [Passage(*each) for each in zip(*columns, strict=True)]
    if not header["dimensions"]:
        return passages, None
    count = len(passages)
    scales = np.frombuffer(data, "<f4", count, begin)
    codes = np.frombuffer(data, np.int8, count * header["dimensions"], begin + scales.nbytes)
    return passages, Vectors(codes.reshape(count, header["dimensions"]), scales)


def in_parts(passages: Sequence[Passage], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields where to cut a list of passages so that each part is written in about `most_bytes` at most."""
    begin, size = 0, 0
    for index, passage in enumerate(passages):
        taken = 2 * len(passage.searched.encode()) + 2048
        if index > begin and size + taken > most_bytes:
            yield begin, index
            begin, size = index, 0
        size += taken
    if passages:
        yield begin, len(passages)
