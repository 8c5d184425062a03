"""DOCX: paragraphs with headings, lists and automatic numbers, tables, text boxes, charts, notes, headers and footers.

Deleted text, comments and hidden text are left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from app.documents.archive import Archive, Element, attribute, child, children, is_on, number, tag, value
from app.documents.document import Content, Section
from app.documents.drawings import graphic
from app.documents.left_out import LeftOut
from app.documents.markdown import entry, heading, table
from app.documents.numbering import Numbering, Place

_SPACES = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_SKIPPED = ("del", "moveFrom", "Fallback", "pPr", "rPr", "sectPr", "instrText", "delText")
_MOST_BASES: Final = 16
"""Styles that a style may be based on, one on another."""
_IN_NO_LIST: Final = ("", "0")


@dataclass(frozen=True, slots=True)
class _Style:
    base: str = ""
    level: int | None = None
    """Of a heading, from 1; None: it says nothing; 0: it is no heading."""
    place: Place | None = None
    is_hidden: bool | None = None


def read(archive: Archive) -> Content:
    """Returns the text, its notes, and what stands at the top and foot of its pages once."""
    return _Reader(archive).content()


class _Reader:
    def __init__(self, archive: Archive) -> None:
        self._archive: Final = archive
        self._main: Final = archive.main_part()
        self._part = self._main
        """The one that is being read."""
        self._styles: Final = _styles(archive, self._main)
        self._numbering: Final = Numbering(archive, self._main)
        self._left_out: Final = LeftOut()

    def content(self) -> Content:
        body = child(self._archive.xml(self._main), "body")
        blocks = list(self._blocks(body))
        for kind in ("footnotes", "endnotes"):
            for part in self._archive.related(self._main, kind).values():
                self._part = part
                # Another type is the line above notes.
                said = [note for note in self._archive.xml(part) if not attribute(note, "type")]
                blocks += [
                    f"[^{attribute(note, 'id')}]: {' '.join(self._blocks(note, is_plain=True))}" for note in said
                ]
        sections = [Section(_joined(blocks))]
        if around := list(dict.fromkeys(self._around_pages(body))):
            sections.append(Section("\n\n".join(around), mark="headers and footers"))
        return Content(sections, self._left_out.notes())

    def _around_pages(self, body: Element) -> Iterator[str]:
        """Yields the headers and footers of all sections, those alone that are shown."""
        read = set[str]()
        settings = self._archive.related(self._main, "settings").values()
        has_even = any(is_on(child(self._archive.xml(part), "evenAndOddHeaders")) for part in settings)
        for kind in ("header", "footer"):
            parts = self._archive.related(self._main, kind)
            for section in () if body is None else body.iter("{*}sectPr"):
                has_first = is_on(child(section, "titlePg"))
                for reference in children(section, f"{kind}Reference"):
                    which, part = attribute(reference, "type"), parts.get(attribute(reference, "id"))
                    is_unseen = (which == "first" and not has_first) or (which == "even" and not has_even)
                    if part is None or part in read or is_unseen:
                        continue
                    read.add(part)
                    self._part = part
                    text = _joined(self._blocks(self._archive.xml(part)))
                    if any(character.isalpha() for character in text):  # not a page's number alone
                        yield text

    def _blocks(self, parent: Element, *, is_plain: bool = False) -> Iterator[str]:
        """Yields paragraphs and tables. is_plain: without marks of headings, as in cells and notes."""
        for each in () if parent is None else parent:
            match tag(each):
                case "p":
                    yield self._paragraph(each, is_plain=is_plain)
                case "tbl":
                    yield table([self._cells(row) for row in self._rows(each)])
                case "sdt":
                    yield from self._blocks(child(each, "sdtContent"), is_plain=is_plain)
                case "ins" | "moveTo" | "customXml" | "smartTag":
                    yield from self._blocks(each, is_plain=is_plain)
                case "altChunk":
                    self._left_out.objects += 1

    def _paragraph(self, paragraph: Element, *, is_plain: bool) -> str:
        properties = child(paragraph, "pPr")
        style = value(properties, "pStyle")
        is_hidden = bool(self._inherited(style, "is_hidden"))
        text = "".join(self._texts(paragraph, is_hidden=is_hidden))
        level = self._inherited(style, "level") or 0
        shown_level = 0 if is_plain else level
        place = _place(child(properties, "numPr")) or self._inherited(style, "place")
        if place is None or place.list_id in _IN_NO_LIST:
            return heading(shown_level, text)
        has_text = bool(text.strip())
        if not has_text and (is_hidden or _is_gone(child(properties, "rPr"))):
            return ""
        depth, shown = self._numbering.next(place, style)
        if not has_text:  # empty, or a picture: its number is used all the same
            return heading(shown_level, text)
        if level:
            return heading(shown_level, text if shown == "-" else f"{shown} {text}".lstrip())
        return entry(depth, text, shown)

    def _inherited(self, style: str, name: str) -> Any:
        """Returns what a style, or one that it is based on, says; None: nothing."""
        for _ in range(_MOST_BASES):
            found = self._styles.get(style)
            said = None if found is None else getattr(found, name)
            if found is None or said is not None:
                return said
            style = found.base
        return None

    def _rows(self, parent: Element) -> Iterator[Element]:
        """Yields the rows of a table, also those in controls; not those of tables in its cells."""
        for each in parent:
            if tag(each) == "tr":
                if is_on(child(each, "trPr", "hidden")):
                    self._left_out.hidden = True
                else:
                    yield each
            elif tag(each) != "tbl":
                yield from self._rows(each)

    def _cells(self, row: Element) -> list[str]:
        cells: list[str] = []
        for cell in children(row, "tc"):
            cells.append(" ".join(self._blocks(cell, is_plain=True)))
            cells += [""] * (min(number(value(cell, "tcPr", "gridSpan"), 1), 64) - 1)
        return cells

    def _texts(self, element: Element, *, is_hidden: bool) -> Iterator[str]:
        """Yields the pieces of what a paragraph says. is_hidden: what does not say otherwise is hidden."""
        for each in element:
            name = tag(each)
            if name == "r":
                yield from self._texts(each, is_hidden=self._is_hidden(each, otherwise=is_hidden))
            elif name == "p":  # of a text box
                yield self._paragraph(each, is_plain=True) + "\n"
            elif name in _SKIPPED:
                continue
            elif is_hidden and name in ("t", "drawing", "pict", "object"):
                self._left_out.hidden = self._left_out.hidden or name != "t" or bool((each.text or "").strip())
            elif name == "object":
                self._left_out.objects += 1
            elif name == "t":
                yield each.text or ""
            elif name in _SPACES:
                yield _SPACES[name]
            elif name in ("footnoteReference", "endnoteReference"):
                yield f"[^{attribute(each, 'id')}]"
            elif name in ("anchor", "inline") and _is_unseen(each):
                self._left_out.hidden = True
            elif (said := graphic(self._archive, self._part, each)) is not None:
                yield f"\n\n{said}\n\n"
            elif name in ("chart", "relIds"):  # of a kind that is not read
                self._left_out.objects += 1
            else:
                self._left_out.pictures += name in ("blip", "imagedata")
                yield from self._texts(each, is_hidden=is_hidden)

    def _is_hidden(self, run: Element, *, otherwise: bool) -> bool:
        properties = child(run, "rPr")
        own = child(properties, "vanish")
        if own is not None:
            return is_on(own)
        styled = self._inherited(value(properties, "rStyle"), "is_hidden")
        return otherwise if styled is None else bool(styled)


def _joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block.strip())


def _is_unseen(drawing: Element) -> bool:
    properties = child(drawing, "docPr")
    return properties is not None and attribute(properties, "hidden").lower() in ("1", "true")


def _is_gone(mark: Element | None) -> bool:
    """Whether the mark at a paragraph's end is deleted, moved away or hidden."""
    is_moved = any(child(mark, name) is not None for name in ("del", "moveFrom"))
    return is_moved or is_on(child(mark, "vanish"))


def _place(element: Element | None) -> Place | None:
    """Returns where a paragraph's or a style's properties put it in a list; None: they do not say."""
    if element is None or child(element, "numId") is None:
        return None
    depth = child(element, "ilvl")
    return Place(value(element, "numId"), None if depth is None else min(number(attribute(depth, "val"), 0), 8))


def _styles(archive: Archive, main: str) -> dict[str, _Style]:
    styles: dict[str, _Style] = {"": _Style()}
    for part in archive.related(main, "styles").values():
        for each in children(archive.xml(part), "style"):
            name, outline = value(each, "name").lower(), value(each, "pPr", "outlineLvl")
            level = None
            if name == "title":
                level = 1
            elif name.startswith("heading ") and name[8:].isdecimal():
                level = int(name[8:9])
            elif outline.isdecimal():
                level = int(outline[:1]) + 1 if outline != "9" else 0
            vanish = child(each, "rPr", "vanish")
            styles[attribute(each, "styleId")] = _Style(
                value(each, "basedOn"),
                level,
                _place(child(each, "pPr", "numPr")),
                None if vanish is None else is_on(vanish),
            )
    return styles
