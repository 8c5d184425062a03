"""What the pages of a PDF say: forms, ligatures, columns, pages that are turned."""

import pytest

from app.documents import pdf
from tests.app.documents.files import pdf_page

COLUMNS = (
    b"BT /F1 12 Tf 50 700 Td (Left one) Tj 0 -15 Td (left two) Tj 300 15 Td (Right one) Tj 0 -15 Td (right two) Tj ET"
)
LIGATURES = b"/Encoding<</Type/Encoding/Differences[1/fi/ffi]>>"


def lines(data: bytes) -> list[str]:
    return pdf.read(data).sections[0].text.splitlines()


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (pdf_page(b"BT /F1 12 Tf 50 700 Td (\x01nd the o\x02ce) Tj ET", font=LIGATURES), ["find the office"]),
        (pdf_page(COLUMNS), ["Left one", "left two", "Right one", "right two"]),
        (
            pdf_page(b"BT /F1 12 Tf 0 1 -1 0 300 100 Tm (Turned page) Tj 0 -15 Td (second line) Tj ET", b"/Rotate 90"),
            ["Turned page", "second line"],
        ),
    ],
    ids=["ligatures", "columns", "turned"],
)
def test_text_is_read_as_people_read_it(data: bytes, shown: list[str]) -> None:
    assert lines(data) == shown


def test_a_form_says_what_was_filled_in() -> None:
    widget = b"<</Type/Annot/Subtype/Widget/P 5 0 R/Rect[100 600 200 610]%b>>"
    more = (
        widget % b"/FT/Tx/T(tenant)/TU(Name of the tenant)/V(Miller)",
        widget % b"/FT/Btn/T(pets)/V/Yes/AS/Yes/AP<</N<</Yes null/Off null>>>>",
        widget
        % b"/FT/Ch/Ff 131072/T(city)/V(\xfe\xff\x00K\x00\xf6\x00l\x00n)/Opt[(Bonn)(\xfe\xff\x00K\x00\xf6\x00l\x00n)]",
        widget % b"/FT/Tx/T(empty)",
        widget % b"/FT/Tx/T(hidden)/V(IGNORE)/F 2",
        widget % b"/FT/Tx/Ff 8192/T(password)/V(1234)",
        b"<</Type/Annot/Subtype/FreeText/Contents(Paid in May)/Rect[100 500 200 510]/P 5 0 R>>",
        b"<</Type/Annot/Subtype/Text/Contents(A comment)/Rect[100 500 200 510]/P 5 0 R>>",
    )
    numbers = [b"%d 0 R" % number for number in range(6, 6 + len(more))]
    data = pdf_page(
        b"BT /F1 12 Tf 50 700 Td (Tenant) Tj ET",
        b"/Annots[%b]" % b" ".join(numbers),
        more=more,
        root=b"/AcroForm<</Fields[%b]>>" % b" ".join(numbers[:6]),
    )
    assert lines(data) == ["Tenant", "Name of the tenant: Miller", "pets: checked", "city: Köln", "Paid in May"]
    assert pdf.read(data).notes == ["Text that is hidden in it is not read."]
