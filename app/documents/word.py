"""DOCX: paragraphs with headings and lists, tables, footnotes. Deleted text and comments are left out."""

from collections.abc import Iterator, Mapping

from app.documents.archive import Archive, Element, attribute, child, children, tag
from app.documents.document import Content, Section
from app.documents.markdown import entry, heading, table

_SPACES = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_SKIPPED = ("del", "moveFrom", "Fallback", "pPr", "rPr", "sectPr", "instrText", "delText")


def read(archive: Archive) -> Content:
    """Returns the text with its footnotes."""
    main = archive.main_part()
    levels = _levels(archive, main)
    blocks = list(_blocks(child(archive.xml(main), "body"), levels))
    for notes in (*archive.related(main, "footnotes").values(), *archive.related(main, "endnotes").values()):
        said = [note for note in archive.xml(notes) if not attribute(note, "type")]  # another is the line above notes
        blocks += [f"[^{attribute(note, 'id')}]: {' '.join(_blocks(note, {}))}" for note in said]
    return Content([Section("\n\n".join(block for block in blocks if block.strip()))])


def _levels(archive: Archive, main: str) -> Mapping[str, int]:
    """Returns the level of each style that is a heading's; 0: a list's."""
    levels: dict[str, int] = {}
    for part in archive.related(main, "styles").values():
        for style in children(archive.xml(part), "style"):
            name = attribute(child(style, "name"), "val").lower() if child(style, "name") is not None else ""
            outline = child(style, "pPr", "outlineLvl")
            if name == "title":
                levels[attribute(style, "styleId")] = 1
            elif name.startswith("heading ") and name[8:].isdecimal():
                levels[attribute(style, "styleId")] = int(name[8:9])
            elif outline is not None and attribute(outline, "val").isdecimal():
                levels[attribute(style, "styleId")] = int(attribute(outline, "val")[:1]) + 1
            elif child(style, "pPr", "numPr") is not None:
                levels[attribute(style, "styleId")] = 0
    return levels


def _blocks(parent: Element, levels: Mapping[str, int]) -> Iterator[str]:
    for each in () if parent is None else parent:
        match tag(each):
            case "p":
                yield _paragraph(each, levels)
            case "tbl":
                yield table([_cells(row) for row in _rows(each)])
            case "sdt":
                yield from _blocks(child(each, "sdtContent"), levels)
            case "ins" | "moveTo" | "customXml" | "smartTag":
                yield from _blocks(each, levels)


def _paragraph(paragraph: Element, levels: Mapping[str, int]) -> str:
    text = "".join(_texts(paragraph))
    style, number = child(paragraph, "pPr", "pStyle"), child(paragraph, "pPr", "numPr")
    level = None if style is None else levels.get(attribute(style, "val"))
    if level or (level is None and number is None) or not text.strip():
        return heading(level or 0, text)
    depth = child(number, "ilvl")
    shown = "0" if depth is None else attribute(depth, "val")
    return entry(int(shown) if shown.isdecimal() and len(shown) < 3 else 0, text)


def _rows(parent: Element) -> Iterator[Element]:
    """Yields the rows of a table, also those in controls; not those of tables in its cells."""
    for each in parent:
        if tag(each) == "tr":
            yield each
        elif tag(each) != "tbl":
            yield from _rows(each)


def _cells(row: Element) -> list[str]:
    cells: list[str] = []
    for cell in children(row, "tc"):
        span = child(cell, "tcPr", "gridSpan")
        width = "" if span is None else attribute(span, "val")
        cells.append(" ".join(_blocks(cell, {})))
        cells += [""] * (min(int(width), 64) - 1 if width.isdecimal() and len(width) < 4 else 0)
    return cells


def _texts(element: Element) -> Iterator[str]:
    for each in element:
        name = tag(each)
        if name == "t":
            yield each.text or ""
        elif name in _SPACES:
            yield _SPACES[name]
        elif name in ("footnoteReference", "endnoteReference"):
            yield f"[^{attribute(each, 'id')}]"
        elif name not in _SKIPPED:
            yield from _texts(each)
            if name == "p":  # of a text box
                yield "\n"
