"""XLSX: each visible sheet as a table of what its cells show; formulas by their last result.

Hidden sheets, rows and columns are left out, which notes say.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.documents.archive import Archive, Element, attribute, child, children, number, tag
from app.documents.document import MOST_CHARACTERS, Content, DocumentError, Section
from app.documents.drawings import is_hidden_shape, shape_text
from app.documents.left_out import LeftOut
from app.documents.markdown import table
from app.documents.number_formats import BUILT_IN, NumberFormat, plain

_MOST_COLUMNS = 16_384
_MOST_WIDTH = 256
"""Columns up to which a table has empty ones too: a sheet may have one cell at its far end."""
_SEPARATOR_CHARACTERS = 3
_TOO_LONG = f"has more than {MOST_CHARACTERS:,} characters of text: send a part of it"
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
_GENERAL = NumberFormat("")


@dataclass(slots=True)
class _Book:
    """What all sheets share, and what was met in them."""

    strings: list[str]
    formats: list[NumberFormat]
    is_1904: bool
    left_out: LeftOut = field(default_factory=LeftOut)
    without_result: int = 0
    has_hidden: bool = False
    """Of the sheet that is being read."""


def read(archive: Archive) -> Content:
    """Returns the sheets. Raises DocumentError."""
    main = archive.main_part()
    if main.endswith(".bin"):
        raise DocumentError("is XLSB: save it as XLSX")
    workbook = archive.xml(main)
    days = child(workbook, "workbookPr")
    is_1904 = days is not None and attribute(days, "date1904").lower() in ("1", "true")
    book = _Book(_strings(archive, main), _formats(archive, main), is_1904)
    parts = archive.related(main, "worksheet")
    sections, notes, sheets = [], [], list(children(child(workbook, "sheets"), "sheet"))
    for index, sheet in enumerate(sheets, start=1):
        name = attribute(sheet, "name")
        part = next((parts[value] for value in sheet.attrib.values() if value in parts), None)
        if attribute(sheet, "state") not in ("", "visible"):
            notes.append(f'The sheet "{name}" is hidden, and not read.')
        elif part is None:  # a chart alone, or missing
            notes.append(f'The sheet "{name}" has no cells, and is not read.')
        else:
            book.has_hidden = False
            blocks = [table(_rows(archive, part, book)), *_boxes(archive, part, book.left_out)]
            sections.append(Section("\n\n".join(filter(None, blocks)), index, f'sheet "{name}"'))
            if book.has_hidden:
                notes.append(f'Hidden rows, columns or cells of the sheet "{name}" are not read.')
    if book.without_result:
        have = "1 formula has" if book.without_result == 1 else f"{book.without_result:,} formulas have"
        notes.append(f"{have} no result in the file: open it in a spreadsheet program, and save it.")
    left_out, names = book.left_out, archive.names
    left_out.pictures = sum(part.startswith("xl/media/") for part in names)
    left_out.objects = sum(part.startswith("xl/embeddings/") for part in names)
    left_out.charts = sum(part.startswith("xl/charts/chart") for part in names)
    return Content(sections, notes + left_out.notes(), len(sheets))


def _strings(archive: Archive, main: str) -> list[str]:
    parts = archive.related(main, "sharedStrings").values()
    return [_text(item) for part in parts for item in archive.elements(part, "si")]


def _text(item: Element) -> str:
    """Returns a string, which may have pieces of several fonts, without how it is pronounced."""
    pieces = [item, *children(item, "r")]
    return _unescaped("".join(text.text or "" for piece in pieces for text in children(piece, "t")))


def _unescaped(text: str) -> str:
    """Returns text with the characters that XML cannot have, which are written as `_x000D_`."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _formats(archive: Archive, main: str) -> list[NumberFormat]:
    """Returns the format of each style that cells refer to by its index."""
    formats = []
    for part in archive.related(main, "styles").values():
        styles = archive.xml(part)
        codes = dict(BUILT_IN)
        for each in children(child(styles, "numFmts"), "numFmt"):
            codes[number(attribute(each, "numFmtId"), 0)] = attribute(each, "formatCode")
        made = {key: NumberFormat(code) for key, code in codes.items()}
        used = (number(attribute(each, "numFmtId"), 0) for each in children(child(styles, "cellXfs"), "xf"))
        formats += [made.get(key, _GENERAL) for key in used]
    return formats


def _rows(archive: Archive, part: str, book: _Book) -> Iterator[list[str]]:
    """Yields what the cells of each row show. Raises DocumentError."""
    characters, hidden, rows = 0, set[int](), list[dict[int, str]]()
    for element in archive.elements(part, "col", "row"):
        if tag(element) == "col":
            if _is_hidden(element, "width"):
                first, last = (number(attribute(element, name), 1) for name in ("min", "max"))
                hidden.update(range(first - 1, min(last, _MOST_COLUMNS)))
        elif tag(element.getparent()) == "sheetData":
            cells = _cells(element, book, hidden)
            characters += sum(map(len, cells.values())) + _SEPARATOR_CHARACTERS * len(cells)
            if characters > MOST_CHARACTERS:
                raise DocumentError(_TOO_LONG)
            if cells:
                rows.append(cells)
    used = {column for cells in rows for column in cells}
    width = max(used, default=-1) + 1
    columns = sorted(used) if width > _MOST_WIDTH else [each for each in range(width) if each not in hidden]
    for cells in rows:
        last = max(cells, default=-1)
        padded = [cells.get(column, "") for column in columns[: bisect_right(columns, last)]]
        characters += _SEPARATOR_CHARACTERS * (len(padded) - len(cells))
        if characters > MOST_CHARACTERS:
            raise DocumentError(_TOO_LONG)
        yield padded


def _is_hidden(element: Element, size: str) -> bool:
    """Whether a row or column is hidden, or of no height or width."""
    if attribute(element, "hidden").lower() in ("1", "true"):
        return True
    try:
        return float(attribute(element, size)) == 0
    except ValueError:
        return False


def _cells(row: Element, book: _Book, hidden: set[int]) -> dict[int, str]:
    """Returns what a row's cells show, by their columns from 0, the hidden and empty ones left out."""
    shown: dict[int, str] = {}
    column, is_hidden = -1, _is_hidden(row, "ht")
    for cell in row:
        column = _column(cell.get("r", ""), column + 1)
        if column >= _MOST_COLUMNS:
            raise DocumentError("can't be read: it has more columns than a sheet can have")
        text, is_shown = _shown(cell, book)
        if text.strip() and (is_hidden or not is_shown or column in hidden):
            book.has_hidden = True
        elif text:
            shown[column] = text
    return shown


def _column(reference: str, otherwise: int) -> int:
    """Returns the column of a cell such as AB12, from 0."""
    letters = reference.rstrip("0123456789").upper()
    if not (letters.isascii() and letters.isalpha() and len(letters) <= 3):
        return otherwise
    column = 0
    for letter in letters:
        column = 26 * column + ord(letter) - ord("A") + 1
    return column - 1


def _shown(cell: Element, book: _Book) -> tuple[str, bool]:
    """Returns what is in a cell, as it shows it, and whether it does."""
    parts = {tag(each): each for each in cell}
    text = parts["v"].text or "" if "v" in parts else ""
    book.without_result += not text and "f" in parts
    style = number(cell.get("s", ""), 0)
    shape = book.formats[style] if style < len(book.formats) else _GENERAL
    match cell.get("t", ""):
        case "s":
            index = number(text, -1)
            text = book.strings[index] if 0 <= index < len(book.strings) else ""
        case "inlineStr":
            text = _text(parts["is"]) if "is" in parts else ""
        case "b":
            text = ("TRUE" if text.lower() in ("1", "true") else "FALSE") if text else ""
        case "str":
            text = _unescaped(text)
        case "d":
            text = _moment(text)
        case "" | "n":
            return _number(text, shape, book)
    return text, not shape.hides_text


def _number(text: str, shape: NumberFormat, book: _Book) -> tuple[str, bool]:
    try:
        value = float(text)
    except ValueError:
        return text, True
    if not math.isfinite(value):
        return text, True
    shown = shape.shown(value, is_1904=book.is_1904)
    return (shown, True) if shown or not value else (plain(value), False)


def _moment(text: str) -> str:
    """Returns a day, a time or both that are written as in XML, without what is zero."""
    day, _, time = text.removesuffix("Z").partition("T")
    time = time.partition(".")[0]
    return f"{day} {time}".strip() if time.strip("0:") or not day else day


def _boxes(archive: Archive, part: str, left_out: LeftOut) -> Iterator[str]:
    """Yields the texts that lie over a sheet."""
    for drawing in archive.related(part, "drawing").values():
        yield from _shapes(archive.xml(drawing), left_out)


def _shapes(tree: Element, left_out: LeftOut) -> Iterator[str]:
    for shape in tree:
        if tag(shape) in ("sp", "grpSp") and is_hidden_shape(shape):
            left_out.hidden = left_out.hidden or any((text.text or "").strip() for text in shape.iter("{*}t"))
        elif tag(shape) == "sp":
            yield shape_text(child(shape, "txBody"))
        else:
            yield from _shapes(shape, left_out)
