"""Numbers as cells of a spreadsheet show them."""

import math

import pytest

from app.documents.number_formats import BUILT_IN, NumberFormat

DAY = 46143  # 2026-05-01
ACCOUNTS = '_-* #,##0.00_-;-* #,##0.00_-;_-* "-"??_-;_-@_-'
EUROS = "#,##0.00\\ [$€-407];[Red]\\-#,##0.00\\ [$€-407]"


@pytest.mark.parametrize(
    ("code", "value", "shown"),
    [
        ("", 0.1 + 0.2, "0.3"),
        ("General", 1e20, "1e+20"),
        ("0.0%", 0.125, "12.5%"),
        ("0%", 0.125, "13%"),
        ("#,##0.00", 1234567.891, "1,234,567.89"),
        ("#,##0,", 1234567, "1,235"),
        ("0.0#", 3, "3.0"),
        ("0000", 42, "0042"),
        ("0", -2.5, "-3"),
        ("0.00", -0.001, "0.00"),
        ("0.00E+00", 12345, "1.23E+4"),
        ('#,##0.00 "€"', 1250, "1,250.00 €"),
        (EUROS, -3.456, "-3.46 €"),
        ('"$"#,##0_);("$"#,##0)', -1234, "($1,234)"),
        (ACCOUNTS, 0, "-"),
        (ACCOUNTS, 5.5, "5.50"),
        ('0 "a;b"', 3, "3 a;b"),
        (";;;", 5, ""),
        ("dd/mm/yyyy", DAY, "2026-05-01"),
        ("[$-409]d mmm yyyy hh:mm", DAY + 0.5, "2026-05-01 12:00"),
        ("mmm-yy", DAY, "2026-05"),
        ("h:mm AM/PM", 0.75, "18:00"),
        ("[h]:mm", 1.5, "36:00"),
        ("yyyy-mm-dd", -1, "-1"),
        ("# ?/?", 0.5, "0.5"),
        ("000-0000", 5551234, "5551234"),
        ("[>=100]0;0.0", 5, "5"),
        ("#,##0.00", 1e300, "1e+300"),
        ("0" * 300, 1, "1"),
        ("#,##0,.00", 1234567, "1,234.57"),
        ("0.0,,", 1234567, "1.2"),
        ("0.00E+00", 0, "0.00E+0"),
        ("[$-411]ggge\\年m\\月d\\日", DAY, "2026-05-01"),
        ("[$-411]ge.m.d", DAY, "2026-05-01"),
        ("0.00 EUR", 1.5, "1.50 EUR"),
        (BUILT_IN[31], DAY, "2026-05-01"),
        (BUILT_IN[58], DAY, "2026-05-01"),
        (BUILT_IN[33], 0.5, "12:00:00"),
        ("yyyy-mm-dd", 2_958_465, "9999-12-31"),
        ("yyyy-mm-dd", 2_958_466, "2958466"),
        ("yyyy-mm-dd", 1e300, "1e+300"),
        ("[h]:mm", 1e305, "1e+305"),
        ("0%%%%%%%%%%%%", 1e14, "100000000000000"),
        ("0.00", math.inf, "inf"),
        ("yyyy", math.nan, "nan"),
    ],
)
def test_a_number_is_shown_as_its_cell_shows_it(code: str, value: float, shown: str) -> None:
    assert NumberFormat(code).shown(value) == shown


def test_days_are_counted_from_where_the_book_says() -> None:
    days = NumberFormat("yyyy-mm-dd")
    assert days.shown(1) == "1900-01-01"
    assert days.shown(61) == "1900-03-01"
    assert days.shown(0, is_1904=True) == "1904-01-01"
    assert days.shown(2_957_003, is_1904=True) == "9999-12-31"
    assert days.shown(2_957_004, is_1904=True) == "2957004"
