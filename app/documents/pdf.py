"""PDF: the text of each page. Pages without text, scans above all, are named in a note."""

import re
from itertools import groupby

import pypdfium2

from app.documents.document import MOST_CHARACTERS, Content, DocumentError, Section

_HYPHENATED = re.compile("[\x02\u00ad\ufffe]\r?\n")
_MOST_NAMED = 8


def read(data: bytes) -> Content:
    """Returns the pages with text. Raises DocumentError."""
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise DocumentError("is protected by a password: save it without one") from None
        raise
    sections, empty, characters, pages = [], [], 0, len(document)
    for index in range(pages):
        try:
            page = document[index]
            text_page = page.get_textpage()
            text = _HYPHENATED.sub("", text_page.get_text_range())
            text_page.close()
            page.close()
        except pypdfium2.PdfiumError:  # one page that is broken
            text = ""
        characters += len(text)
        if characters > MOST_CHARACTERS:
            raise DocumentError(f"has more than {MOST_CHARACTERS:,} characters of text: send a part of it")
        if text.strip():
            sections.append(Section(text, index + 1, f"page {index + 1}"))
        else:
            empty.append(index + 1)
    if not pages:
        raise DocumentError("has no pages")
    return Content(sections, [_note(empty, pages)] if empty else [], pages)


def _note(empty: list[int], pages: int) -> str:
    if len(empty) == pages:
        return "No page has text: pictures of text, such as scans, are not read."
    runs = [[page for _, page in run] for _, run in groupby(enumerate(empty), lambda one: one[1] - one[0])]
    named = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    shown = ", ".join(named[:_MOST_NAMED]) + (" and more" if len(named) > _MOST_NAMED else "")
    what = f"Page {shown} has" if len(empty) == 1 else f"Pages {shown} have"
    return f"{what} no text: pictures of text, such as scans, are not read."
