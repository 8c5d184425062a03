"""What is read of a file, and how it stands in a prompt. Imports no library that reads files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Kind = Literal["text", "markdown", "code", "csv", "html", "pdf", "docx", "xlsx", "pptx", "odt", "eml"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
KINDS_SHOWN: Final = "text, Markdown, code, CSV, HTML, PDF, DOCX, XLSX, PPTX, ODT and EML"
ANOTHER_ARCHIVE: Final = f"is an archive of another kind: send the files in it; {KINDS_SHOWN} are read"
MOST_CHARACTERS: Final = 4_000_000
"""Of a document's text: more than the context of any model that is served on CPUs."""
_MOST_NAME_CHARACTERS: Final = 128
_HIDDEN: Final = "\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff0-\ufffc\ufffe\uffff\U000e0000-\U000e0fff"
"""No one sees them, and a text with them can say other things to a model than to its reader."""
_NOT_IN_NAMES: Final = re.compile(rf'[\x00-\x1f\x7f-\x9f"<>\ud800-\udfff\u2028\u2029{_HIDDEN}]')
_NOT_IN_TEXTS: Final = re.compile(rf"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff{_HIDDEN}]")
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_FRAMES: Final = re.compile(r'(?:<document name="[^"\n]*">\n.*?\n</document>\n+)+', re.DOTALL)
_LINE_SPACES: Final = re.compile(r"(?<![ \t])[ \t]++\n")
"""Each run of spaces is looked at once, however long it is."""
_FRAME_ENDS: Final = re.compile(r"<(?=/?document\b)", re.IGNORECASE)


class DocumentError(ValueError):
    """A file can't be read. The message goes on after the file's name: "is protected by a password: ..."."""


class BusyError(Exception):
    """Too many files are being read."""


@dataclass(frozen=True, slots=True)
class Section:
    """A page, a slide, a sheet, or all of a document that has none."""

    text: str = field(repr=False)
    page: int | None = None
    """From 1; None: the document has no pages."""
    mark: str = ""
    """What stands before its text, such as "page 3"; empty: nothing does."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a reader of one kind found."""

    sections: Sequence[Section] = field(repr=False)
    notes: Sequence[str] = field(default=(), repr=False)
    """What could not be read, a sentence each."""
    pages: int | None = None
    """Its pages, slides or sheets, also those without text; None: it has none."""


@dataclass(frozen=True, slots=True)
class Document(Content):
    """What was read of a file."""

    name: str = field(default="", repr=False)
    kind: Kind = "text"

    @property
    def text(self) -> str:
        """What the model sees."""
        shown = (f"[{one.mark}]\n{one.text}" if one.mark else one.text for one in self.sections if one.text)
        return "\n\n".join(shown)


def clean_name(name: str) -> str:
    """Returns a file's name without folders, control characters and what a frame could be broken with."""
    name = _NOT_IN_NAMES.sub("", name.replace("\\", "/").rpartition("/")[2]).strip()
    return name[:_MOST_NAME_CHARACTERS] or "document"


def clean_text(text: str) -> str:
    """Returns a text without control characters and without those that no reader sees."""
    text = _NOT_IN_TEXTS.sub("", _LINE_ENDS.sub("\n", text))
    text = _LINE_SPACES.sub("\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n ")


def frames_end(text: str, start: int) -> int:
    """Returns where the documents end that a prompt has from `start` on; `start` if there is none."""
    found = _FRAMES.match(text, start)
    return start if found is None else found.end()


def framed(name: str, text: str) -> str:
    """Returns a document as it stands in a prompt, before the question. No text can end its frame."""
    return f'<document name="{clean_name(name)}">\n{_FRAME_ENDS.sub("&lt;", text)}\n</document>\n'
