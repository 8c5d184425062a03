"""XLSX: each visible sheet as a table of the values that its cells show; formulas by their last result."""

from collections.abc import Iterator
from datetime import datetime, time
from io import BytesIO
from typing import Any

from python_calamine import CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

from app.documents.archive import Archive
from app.documents.document import MOST_CHARACTERS, Content, DocumentError, Section
from app.documents.markdown import table


def read(data: bytes) -> Content:
    """Returns the sheets. Raises DocumentError."""
    Archive(data)  # refuses what is too large, or has macros
    book = CalamineWorkbook.from_filelike(BytesIO(data))
    sections, notes = [], []
    for number, sheet in enumerate(book.sheets_metadata, start=1):
        if sheet.visible != SheetVisibleEnum.Visible:
            notes.append(f'The sheet "{sheet.name}" is hidden, and not read.')
        elif sheet.typ == SheetTypeEnum.WorkSheet:
            text = table(_rows(book.get_sheet_by_name(sheet.name)))
            sections.append(Section(text, number, f'sheet "{sheet.name}"'))
    return Content(sections, notes, len(book.sheet_names))


def _rows(sheet: Any) -> Iterator[list[str]]:
    characters = 0
    for row in sheet.iter_rows():
        shown = [_shown(value) for value in row]
        characters += sum(map(len, shown))
        if characters > MOST_CHARACTERS:
            raise DocumentError(f"has more than {MOST_CHARACTERS:,} characters of text: send a part of it")
        yield shown


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime) and value.time() == time():
        return str(value.date())
    return str(value)
