"""ODT: headings, paragraphs, lists, tables and notes."""

from collections.abc import Iterator

from app.documents.archive import Archive, Element, attribute, child, children, tag
from app.documents.document import Content, DocumentError, Section
from app.documents.markdown import entry, heading, table

_SKIPPED = ("tracked-changes", "annotation", "sequence-decls", "note-citation", "desc", "title")
_MOST_REPEATED = 256
"""Of a cell, a row or a space: a sheet's last ones say that they are repeated to its end."""


def read(archive: Archive) -> Content:
    """Returns the text. Raises DocumentError."""
    if "META-INF/manifest.xml" in archive.names:
        manifest = archive.xml("META-INF/manifest.xml")
        if any(tag(each) == "encryption-data" for each in manifest.iter()):
            raise DocumentError("is protected by a password: save it without one")
    body = child(archive.xml("content.xml"), "body", "text")
    return Content([Section("\n\n".join(block for block in _blocks(body) if block.strip()))])


def _blocks(parent: Element, depth: int = 0) -> Iterator[str]:
    for each in () if parent is None else parent:
        match tag(each):
            case "p":
                yield "".join(_texts(each))
            case "h":
                level = attribute(each, "outline-level")
                yield heading(int(level[:1]) if level.isdecimal() else 1, "".join(_texts(each)))
            case "list":
                yield "\n".join(_entries(each, depth))
            case "table":
                yield table(_rows(each))
            case name if name not in _SKIPPED:
                yield from _blocks(each, depth)


def _entries(parent: Element, depth: int) -> Iterator[str]:
    for item in parent:
        for index, block in enumerate(_blocks(item, depth + 1)):
            is_nested = block.lstrip().startswith("- ") and index
            yield block if is_nested else entry(depth, block)


def _rows(parent: Element) -> Iterator[list[str]]:
    for each in parent:
        if tag(each) == "table-row":
            cells: list[str] = []
            for cell in each:
                cells += [" ".join(_blocks(cell))] * _count(cell, "number-columns-repeated")
            for _ in range(_count(each, "number-rows-repeated")):
                yield cells
        elif tag(each) in ("table-header-rows", "table-rows", "table-row-group"):
            yield from _rows(each)


def _texts(element: Element) -> Iterator[str]:
    yield element.text or ""
    for each in element:
        match tag(each):
            case "s":
                yield " " * _count(each, "c")
            case "tab":
                yield "\t"
            case "line-break":
                yield "\n"
            case "note":
                said = " ".join(" ".join(_blocks(body)) for body in children(each, "note-body"))
                yield f" [{said}]"
            case "table" | "list":
                yield "\n".join(["", *_blocks([each]), ""])
            case name if name not in _SKIPPED:
                yield from _texts(each)
        yield each.tail or ""


def _count(element: Element, name: str) -> int:
    value = attribute(element, name)
    return min(int(value), _MOST_REPEATED) if value.isdecimal() and len(value) < 10 else 1
