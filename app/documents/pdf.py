"""PDF: the text of each page, what its form's fields say, and what was written onto it.

Pages without text, scans above all, are named in a note.
"""

import ctypes
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

import pypdfium2
import pypdfium2.raw as pdfium

from app.documents.document import MOST_CHARACTERS, Content, DocumentError, Section
from app.documents.left_out import LeftOut

_HYPHENATED = re.compile("[\x02\u00ad\ufffe]\r?\n")
_MOST_NAMED = 8
_MOST_FIELD_BYTES: Final = 1 << 20
_UNSEEN: Final = pdfium.FPDF_ANNOT_FLAG_HIDDEN | pdfium.FPDF_ANNOT_FLAG_NOVIEW
_WITH_VALUES: Final = (pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX)
_TO_CHECK: Final = (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON)


def read(data: bytes) -> Content:
    """Returns the pages with text. Raises DocumentError."""
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise DocumentError("is protected by a password: save it without one") from None
        raise
    left_out = LeftOut()
    document.init_forms()  # before pages are counted
    sections, empty, characters, pages = [], [], 0, len(document)
    for index in range(pages):
        try:
            page = document[index]
            text_page = page.get_textpage()
            text = _HYPHENATED.sub("", text_page.get_text_range())
            text_page.close()
            text = "\n".join([text, *filter(None, _written(page, left_out))])
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
    return Content(sections, [*([_note(empty, pages)] if empty else []), *left_out.notes()], pages)


def _note(empty: list[int], pages: int) -> str:
    if len(empty) == pages:
        return "No page has text: pictures of text, such as scans, are not read."
    runs = [[page for _, page in run] for _, run in groupby(enumerate(empty), lambda one: one[1] - one[0])]
    named = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    shown = ", ".join(named[:_MOST_NAMED]) + (" and more" if len(named) > _MOST_NAMED else "")
    what = f"Page {shown} has" if len(empty) == 1 else f"Pages {shown} have"
    return f"{what} no text: pictures of text, such as scans, are not read."


def _written(page: Any, left_out: LeftOut) -> Iterator[str]:
    """Yields what people have filled in and written on a page, a line each. Comments are left out."""
    for index in range(pdfium.FPDFPage_GetAnnotCount(page)):
        annotation = pdfium.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            text = _shown(page.formenv, annotation)
            if text and pdfium.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
                left_out.hidden = True
            else:
                yield text
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)


def _shown(form: Any, annotation: Any) -> str:
    match pdfium.FPDFAnnot_GetSubtype(annotation):
        case pdfium.FPDF_ANNOT_FREETEXT:
            return _string(lambda into, size: pdfium.FPDFAnnot_GetStringValue(annotation, b"Contents", into, size))
        case pdfium.FPDF_ANNOT_WIDGET if form:
            return _field(form, annotation)
    return ""


def _field(form: Any, annotation: Any) -> str:
    """Returns a field's label and value; nothing if it is empty, a button, or a password."""

    def asked(ask: Callable[..., int]) -> str:
        return _string(lambda into, size: ask(form, annotation, into, size))

    kind = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    is_secret = pdfium.FPDFAnnot_GetFormFieldFlags(form, annotation) & pdfium.FPDF_FORMFLAG_TEXT_PASSWORD
    value = ""
    if kind in _WITH_VALUES and not (kind == pdfium.FPDF_FORMFIELD_TEXTFIELD and is_secret):
        value = asked(pdfium.FPDFAnnot_GetFormFieldValue)
    elif kind in _TO_CHECK and pdfium.FPDFAnnot_IsChecked(form, annotation):
        exported = asked(pdfium.FPDFAnnot_GetFormFieldExportValue)
        value = "checked" if kind == pdfium.FPDF_FORMFIELD_CHECKBOX or not exported else exported
    label = asked(pdfium.FPDFAnnot_GetFormFieldAlternateName) or asked(pdfium.FPDFAnnot_GetFormFieldName)
    return f"{label}: {value}" if value.strip() else ""


def _string(ask: Callable[[Any, int], int]) -> str:
    """Returns a string of PDFium's, which says how many bytes of UTF-16 it has with the zero behind it."""
    size = ask(None, 0)
    if not 2 < size <= _MOST_FIELD_BYTES:
        return ""
    into = ctypes.create_string_buffer(size)
    ask(ctypes.cast(into, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return into.raw[: size - 2].decode("utf-16-le", "replace").replace("\r", "\n").strip()
