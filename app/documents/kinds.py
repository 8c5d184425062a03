"""Which kind a file is, by its content, and by its name where text could be several kinds; and who reads it.

A reader's library is imported only for a file that needs it.
"""

import re
from collections.abc import Callable
from io import BytesIO
from typing import Final
from zipfile import BadZipFile, ZipFile

from app.documents.document import ANOTHER_ARCHIVE, Content, DocumentError, Kind, Section
from app.documents.plain import csv_table, decoded

_PDF: Final = re.compile(rb"(?:\xef\xbb\xbf)?[\s\0]{0,1024}%PDF-")
_PDF_WITHIN: Final = re.compile(rb".{0,1024}?%PDF-\d", re.DOTALL)
_PDF_END: Final = re.compile(rb"startxref\s+\d+\s+%%EOF")
"""Near the end of every PDF: a text that only mentions how one begins has it not there."""
_OTHERS: Final = (
    (rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0\0\0\0|II\*\0|MM\0\*|RIFF.{4}WEBP", "is a picture, which no model here sees"),
    (
        rb"\xd0\xcf\x11\xe0",
        "is an old Office file, or protected by a password: save it as DOCX, XLSX or PPTX without one",
    ),
    (rb"\{\\rtf", "is RTF: save it as DOCX or ODT"),
    (rb"\x1f\x8b|7z\xbc\xaf|Rar!|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "is an archive: send the files in it"),
)
_SUFFIXES: Final[dict[str, Kind]] = {
    "md": "markdown",
    "markdown": "markdown",
    "csv": "csv",
    "tsv": "csv",
    "htm": "html",
    "html": "html",
    "xhtml": "html",
    "eml": "eml",
}
_CODE: Final = """asm bash bat c cc clj cmake conf cpp cs css cu cxx dart diff dockerfile ex go gradle h hpp hs inc ini
ipynb java js json jsonl jsx kt less lua m makefile mjs ml mm patch php pl proto ps1 py pyi r rb rs scala scss sh
sql svelte swift tcl tex toml ts tsx vb vue xml yaml yml zig zsh"""
_HTML: Final = re.compile(rb"\s*(<!--.{0,999}?-->\s*)?<(!doctype\s+html|html[\s>])", re.IGNORECASE | re.DOTALL)
_HEADER: Final = rb"(?:[\w-]+:[^\n]*\n(?:[ \t][^\n]*\n)*)"
_MAIL: Final = re.compile(rb"%b{0,99}?(?:From|Received|Return-Path|Date):[^\n]*\n%b*?\r?\n" % (_HEADER, _HEADER))

Read = Callable[[], Content]


def reader_of(name: str, data: bytes) -> tuple[Kind, Read]:
    """Returns a file's kind, and what reads it; all that it needs is imported then. Raises DocumentError."""
    if not data.strip():
        raise DocumentError("is empty")
    if _PDF.match(data) or (_PDF_WITHIN.match(data) and _PDF_END.search(data[-1024:])):
        from app.documents import pdf

        return "pdf", lambda: pdf.read(data)
    if data.startswith(b"PK\x03\x04"):
        return _in_zip(data)
    for start, what in _OTHERS:
        if re.match(start, data, re.DOTALL):
            raise DocumentError(what)
    suffix = name.lower().rpartition(".")[2]
    kind = _SUFFIXES.get(suffix, "code" if suffix in _CODE.split() else "text")
    if kind == "html" or (kind == "text" and _HTML.match(data[:4096])):
        from app.documents import web

        return "html", lambda: web.read(data)
    if kind == "eml" or (kind == "text" and _MAIL.match(data[:16384])):
        from app.documents import mail

        return "eml", lambda: mail.read(data)
    return kind, lambda: _text(data, kind)


def _text(data: bytes, kind: Kind) -> Content:
    text, notes = decoded(data)
    return Content([Section(csv_table(text) if kind == "csv" else text)], notes)


def _in_zip(data: bytes) -> tuple[Kind, Read]:
    try:
        names = set(ZipFile(BytesIO(data)).namelist())  # nothing is inflated before the process is sealed
    except (BadZipFile, NotImplementedError, ValueError, OSError):
        raise DocumentError("is damaged, or was cut off: send it again") from None
    folders = {name.partition("/")[0] for name in names}
    from app.documents.archive import Archive

    if "word" in folders:
        from app.documents import word

        return "docx", lambda: word.read(Archive(data))
    if "ppt" in folders:
        from app.documents import slides

        return "pptx", lambda: slides.read(Archive(data))
    if "xl" in folders:
        from app.documents import sheets

        return "xlsx", lambda: sheets.read(Archive(data))
    if {"mimetype", "content.xml"} <= names:
        from app.documents import opendocument

        return "odt", lambda: opendocument.read(Archive(data))
    raise DocumentError(ANOTHER_ARCHIVE)
