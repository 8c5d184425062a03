"""Cuts a document into passages, and writes passages with their vectors as bytes.

A passage is a few paragraphs under one heading, so that it can be understood alone, and overlaps the one before it, so
that no answer is cut in two.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.documents.document import Kind, Section
from app.knowledge.outline import Outline

PASSAGE_CHARACTERS: Final = 900
"""The longest passage, about 200 tokens of English: small encoders read 256."""
_LEAST_CHARACTERS: Final = 60
_OVERLAP_SHARE: Final = 6
"""Passages overlap by this part of their length: so much may be cut from an end, as it begins the next one."""
_LENGTH_BYTES: Final = 4
_ROWS_AT_ONCE: Final = 2048
_ESTIMATED_TOKENS: Final = 254
_HEADING_TOKENS: Final = 24
"""What is left for a passage's headings."""
_SAMPLES: Final = 16
_SAMPLE_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document."""

    text: str = field(repr=False)
    page: int | None = None
    """Where it begins, from 1; None: the document has no pages."""
    heading: str = field(default="", repr=False)
    """The headings that it is under, outermost first, with " > " between; without one that it begins with."""
    begin: int | None = None
    """Its place in the document, in characters; None: unknown."""
    mark: str = field(default="", repr=False)
    """What its section is called, such as a sheet; empty if that is only the number of a page."""
    lead: str = field(default="", repr=False)
    """The header of the table in which it begins, in Markdown; empty: it begins in none, or with its header."""

    def searched(self, place: str = "") -> str:
        """What is searched. place: the document's name or path, which is not embedded."""
        return "\n".join(filter(None, (place, self.heading, self.mark, self.lead, self.text)))

    def with_lead(self) -> "Passage":
        """Returns the passage with the header of its table in its text."""
        return replace(self, text=f"{self.lead}\n{self.text}", lead="") if self.lead else self


@dataclass(frozen=True, slots=True)
class Reader:
    """How much of a text the encoder reads that is to make its vector."""

    count: Callable[[Sequence[str]], Sequence[int]]
    """Returns the tokens of each text."""
    most_tokens: int


def estimated_tokens(texts: Sequence[str]) -> list[int]:
    """Returns about how many tokens texts are, for no encoder in particular: by scripts, and rather too many."""
    found = list[int]()
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        latin, others = int((codes < 0x80).sum()), int((codes < 0xE00).sum())
        found.append((latin + 2 * (others - latin) + 4 * (len(codes) - others) + 3) // 4)
    return found


ESTIMATED: Final = Reader(estimated_tokens, _ESTIMATED_TOKENS)
"""For small encoders, if none is served."""


def cut(
    sections: Sequence[Section], *, kind: Kind = "markdown", place: str = "", reader: Reader = ESTIMATED
) -> list[Passage]:
    """Cuts a document into passages, in order.

    place: its name or path, which each passage is searched with. reader: passages are so short that it reads them.
    """
    passages, begin = list[Passage](), 0
    [named] = reader.count([place])
    room = max(reader.most_tokens - named - _HEADING_TOKENS, reader.most_tokens // 2)
    for run in _runs(sections):
        text = "\n\n".join(section.text for section in run)
        begins = [*accumulate((len(section.text) + 2 for section in run), initial=0)]
        outline = Outline("" if kind == "code" else text)
        mark = "" if _is_numbered(run[0]) else run[0].mark
        for at, piece in _pieces(text, kind, outline, replace(reader, most_tokens=room)):
            page = run[bisect_right(begins, at) - 1].page
            passages.append(Passage(piece, page, outline.heading(at), begin + at, mark, outline.lead(at)))
        begin += begins[-1]
    return passages


def _runs(sections: Sequence[Section]) -> Iterator[list[Section]]:
    """Yields sections that are cut together: pages are, so that no sentence ends with its page; sheets are not."""
    run = list[Section]()
    for section in sections:
        if run and not (_is_numbered(run[-1]) and _is_numbered(section)):
            yield run
            run = []
        run.append(section)
    if run:
        yield run


def _is_numbered(section: Section) -> bool:
    """Whether a section's mark says no more than a number."""
    return not section.mark or section.mark in (f"page {section.page}", f"slide {section.page}")


def _pieces(text: str, kind: Kind, outline: Outline, reader: Reader) -> Iterator[tuple[int, str]]:
    """Yields pieces of a text that the reader reads, each with its place."""
    samples = range(0, len(text), max(len(text) // _SAMPLES, _SAMPLE_CHARACTERS))
    sampled = [text[at : at + _SAMPLE_CHARACTERS] for at in samples]
    tokens = max(sum(reader.count(sampled)), 1)
    characters = min(PASSAGE_CHARACTERS, sum(map(len, sampled)) * reader.most_tokens // tokens)
    pieces = _split(text, kind, max(characters, _LEAST_CHARACTERS))
    counts = reader.count([outline.lead(at) + piece for at, piece in pieces])
    for (at, piece), count in zip(pieces, counts, strict=True):
        if count * (_OVERLAP_SHARE - 1) <= reader.most_tokens * _OVERLAP_SHARE or len(piece) <= _LEAST_CHARACTERS:
            yield at, piece
            continue
        own = count - reader.count([outline.lead(at)])[0]
        room = max(reader.most_tokens - count + own, reader.most_tokens // 2)
        shorter = min(int(len(piece) * room / max(own, 1)), len(piece) - 1)
        for more, part in _split(piece, kind, max(shorter, _LEAST_CHARACTERS)):
            yield at + more, part


def _split(text: str, kind: Kind, characters: int) -> list[tuple[int, str]]:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter  # only who adds documents needs it

    overlap = characters // _OVERLAP_SHARE
    if kind == "code":
        return TextSplitter(characters, overlap=overlap).chunk_indices(text)
    return MarkdownSplitter(characters, overlap=overlap).chunk_indices(text)


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
        similar = np.empty(len(self.codes), np.float32)
        for begin in range(0, len(similar), _ROWS_AT_ONCE):  # a product makes floats of all codes that it gets
            rows = slice(begin, begin + _ROWS_AT_ONCE)
            similar[rows] = (self.codes[rows] @ query.astype(np.float32)) * self.scales[rows]
        return similar

    @property
    def size_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def written(passages: Sequence[Passage], vectors: Vectors | None) -> bytes:
    """Returns passages with their vectors as bytes; None: without vectors."""
    header = orjson.dumps({
        "texts": [one.text for one in passages],
        "pages": [one.page for one in passages],
        "headings": [one.heading for one in passages],
        "begins": [one.begin for one in passages],
        "marks": [one.mark for one in passages],
        "leads": [one.lead for one in passages],
        "dimensions": 0 if vectors is None else vectors.codes.shape[1],
    })  # fmt: skip
    numbers = b"" if vectors is None else vectors.scales.astype("<f4").tobytes() + vectors.codes.tobytes()
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + numbers


def read(data: bytes) -> tuple[list[Passage], Vectors | None]:
    """Reads what `written` has made. Raises ValueError or KeyError for anything else."""
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = orjson.loads(data[_LENGTH_BYTES:begin])
    count = len(header["texts"])
    begins = header.get("begins") or [None] * count  # older versions have written fewer columns
    marks, leads = header.get("marks") or [""] * count, header.get("leads") or [""] * count
    columns = header["texts"], header["pages"], header["headings"], begins, marks, leads
    passages = [Passage(*each) for each in zip(*columns, strict=True)]
    if not header["dimensions"]:
        return passages, None
    scales = np.frombuffer(data, "<f4", count, begin)
    codes = np.frombuffer(data, np.int8, count * header["dimensions"], begin + scales.nbytes)
    return passages, Vectors(codes.reshape(count, header["dimensions"]), scales)


def in_parts(passages: Sequence[Passage], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields where to cut a list of passages so that each part is written in about `most_bytes` at most."""
    begin, size = 0, 0
    for index, passage in enumerate(passages):
        taken = 2 * len(passage.searched().encode()) + 2048
        if index > begin and size + taken > most_bytes:
            yield begin, index
            begin, size = index, 0
        size += taken
    if passages:
        yield begin, len(passages)
