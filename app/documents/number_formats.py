"""A number as a cell of a spreadsheet shows it: percent, currency, thousands, decimals. Dates are in ISO form.

Of rare formats (fractions, conditions, digits with signs between them) the number itself is shown.
"""

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

BUILT_IN: Final[Mapping[int, str]] = {
    1: "0",
    2: "0.00",
    3: "#,##0",
    4: "#,##0.00",
    9: "0%",
    10: "0.00%",
    11: "0.00E+00",
    14: "yyyy-mm-dd",
    15: "yyyy-mm-dd",
    16: "mm-dd",
    17: "yyyy-mm",
    18: "h:mm",
    19: "h:mm:ss",
    20: "h:mm",
    21: "h:mm:ss",
    22: "yyyy-mm-dd h:mm",
    **dict.fromkeys((*range(27, 32), 36, *range(50, 55), 57, 58), "yyyy-mm-dd"),
    32: "h:mm",
    33: "h:mm:ss",
    37: "#,##0;(#,##0)",
    38: "#,##0;(#,##0)",
    39: "#,##0.00;(#,##0.00)",
    40: "#,##0.00;(#,##0.00)",
    41: "#,##0;-#,##0;-",
    42: "$#,##0;-$#,##0;$-",
    43: "#,##0.00;-#,##0.00;-",
    44: "$#,##0.00;-$#,##0.00;$-",
    45: "mm:ss",
    46: "[h]:mm:ss",
    47: "mm:ss",
    48: "##0.0E+0",
}
"""Of Office Open XML, by number, from 27 to 36 and from 50 on of Chinese, Japanese and Korean programs alone.

Others, and those of which these programs differ, are as if there were none.
"""

_TOKENS: Final = re.compile(
    r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.)|_.|\*.|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[(?P<elapsed>[hms]+)\]|\[[^\]]*\]'
    r"|(?P<half>AM/PM|A/P)|(?P<exponent>E[+-])|(?P<general>General)|(?P<digits>[0#?][0#?.,]*|\.[0#?]+)"
    r"|(?P<year>g*e+(?![a-z]))|(?P<date>[ymdhs]+)|(?P<percent>%)|(?P<literal>.)",
    re.IGNORECASE | re.DOTALL,
)
_CONDITION: Final = re.compile(r"\[[<>=]")
_TEXT_PART: Final = 3
_MOST_FORMAT_CHARACTERS: Final = 255
_MOST_DECIMALS: Final = 10
_PLACES: Final = tuple(Decimal(1).scaleb(-places) for places in range(_MOST_DECIMALS + 1))
_LARGEST: Final = 1e15
"""From here on spreadsheets keep no single units."""
_SECONDS_OF_DAY: Final = 86_400


class _Part:
    """One of the up to four parts of a format, looked at once."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        of = {kind: [text for found, text in tokens if found == kind] for kind, _ in tokens}
        texts, digits, self.percents = of.get("text", []), of.get("digits", []), len(of.get("percent", []))
        self.is_empty: Final = not tokens
        self.is_scientific: Final = "exponent" in of
        year = "y" if "year" in of and not digits else ""  # of an era
        self.date: Final = year + "".join(of.get("date", []))
        self.elapsed: Final = of.get("elapsed", [""])[0][:1]
        self.is_date: Final = bool(self.date or self.elapsed)
        is_odd = "/" in texts or len(digits) > 1 + self.is_scientific
        self.is_plain: Final = "general" in of or "@" in texts or (is_odd and not self.is_date)
        self.has_digits: Final = bool(digits)
        number = digits[0] if digits else ""
        whole, _, fraction = number.partition(".")
        self.thousands: Final = sum(len(one) - len(one.rstrip(",")) for one in (whole, fraction))
        self.is_grouped: Final = "," in whole.rstrip(",")
        self.least_whole: Final = whole.count("0")
        self.least: Final = min(fraction.count("0"), _MOST_DECIMALS)
        self.most: Final = min(sum(fraction.count(one) for one in "0#?"), _MOST_DECIMALS)
        at = next((index for index, (kind, _) in enumerate(tokens) if kind == "digits"), len(tokens))
        shown = [text if kind in ("text", "percent") else "" for kind, text in tokens]
        self.before: Final = "".join(shown[:at]).lstrip()
        self.behind: Final = "".join(shown[at:]).rstrip()


class NumberFormat:
    """One format, such as `#,##0.00 [$€-407];[Red]-#,##0.00 [$€-407]`."""

    def __init__(self, code: str) -> None:
        is_odd = not 0 < len(code) <= _MOST_FORMAT_CHARACTERS or _CONDITION.search(code) is not None
        self._parts: Final = () if is_odd else tuple(map(_part, _split(code)))
        self.hides_text: Final = len(self._parts) > _TEXT_PART and self._parts[_TEXT_PART].is_empty

    def shown(self, value: float, *, is_1904: bool = False) -> str:
        """Returns a number as a cell shows it. is_1904: days are counted from 1904 on, not from 1900."""
        part, signed = self._chosen(value)
        if part is None or part.is_plain or not math.isfinite(value):
            return plain(value)
        try:
            return _date(part, value, is_1904=is_1904) if part.is_date else _number(part, signed)
        except ArithmeticError:  # after the year 9999, or of too many digits
            return plain(value)

    def _chosen(self, value: float) -> tuple[_Part | None, float]:
        """Returns the part for a number, and the number with the sign that the part does not write itself."""
        match self._parts[:3]:
            case ():
                return None, value
            case (only,):
                return only, value
            case (positive, negative, *rest):
                if value < 0:
                    return negative, -value
                return rest[0] if rest and value == 0 else positive, value
        return None, value


def plain(value: float) -> str:
    """Returns a number without a format: of 15 digits, as spreadsheets keep them."""
    if abs(value) < _LARGEST and value == int(value):
        return str(int(value))
    return f"{value:.15g}"


def _split(code: str) -> list[str]:
    """Returns the parts of a format, which have semicolons between them, if not in quotes."""
    parts = [""]
    for found in _TOKENS.finditer(code):
        if found["literal"] == ";":
            parts.append("")
        else:
            parts[-1] += found[0]
    return parts


def _part(code: str) -> _Part:
    tokens = []
    for found in _TOKENS.finditer(code):
        kind = found.lastgroup
        if kind in ("quoted", "escaped", "currency", "literal"):
            tokens.append(("text", found[kind]))
        elif kind is not None:
            tokens.append((kind, found[kind].lower()))
        elif found[0].startswith("_"):  # as wide as a sign
            tokens.append(("text", " "))
    return _Part(tokens)


def _number(part: _Part, value: float) -> str:
    if not part.has_digits:
        return (part.before + part.behind).strip()
    if abs(value) >= _LARGEST:
        return plain(value)
    scaled = Decimal(f"{value:.15g}").scaleb(2 * part.percents - 3 * part.thousands)
    if part.is_scientific:
        exact = scaled or Decimal(0).scaleb(-part.most)  # of zero, its exponent is shown
        return f"{part.before}{exact:.{part.most}E}{part.behind}"
    rounded = abs(scaled).quantize(_PLACES[part.most], ROUND_HALF_UP)
    before, _, after = (f"{rounded:,f}" if part.is_grouped else f"{rounded:f}").partition(".")
    if part.least < part.most:
        after = after[: part.least] + after[part.least :].rstrip("0")
    if before == "0" and not part.least_whole:
        before = ""
    sign = "-" if scaled < 0 and rounded else ""
    shown = f"{before.zfill(part.least_whole)}.{after}" if after else before.zfill(part.least_whole)
    return f"{sign}{part.before}{shown}{part.behind}"


def _date(part: _Part, value: float, *, is_1904: bool) -> str:
    """Returns a day, a time or both, as far as the format shows them. Raises OverflowError after the year 9999."""
    letters = part.date
    if part.elapsed:
        return _elapsed(part.elapsed, value, with_seconds="s" in letters)
    if value < 0:
        return plain(value)
    # Day 60 of 1900 is a 29th of February that was none.
    first = date(1904, 1, 1) if is_1904 else date(1899, 12, 31 if value < 60 else 30)
    start = datetime.combine(first, time())
    moment = start + timedelta(seconds=round(value * _SECONDS_OF_DAY))
    has_time = "h" in letters or "s" in letters
    day = "%Y-%m-%d" if "d" in letters and "y" in letters else "%m-%d" if "d" in letters else "%Y-%m"
    day = "%Y" if "y" in letters and "m" not in letters and "d" not in letters else day
    pieces = [day] if "y" in letters or "d" in letters or not has_time else []
    pieces += ["%H:%M:%S" if "s" in letters else "%H:%M"] if has_time else []
    return moment.strftime(" ".join(pieces))


def _elapsed(unit: str, value: float, *, with_seconds: bool) -> str:
    """Returns a time that may be more than a day. unit: of its first part: h, m or s."""
    seconds = round(abs(value) * _SECONDS_OF_DAY)
    sign = "-" if value < 0 else ""
    match unit:
        case "s":
            return f"{sign}{seconds}"
        case "m":
            return f"{sign}{seconds // 60}:{seconds % 60:02}"
    shown = f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}"
    return f"{shown}:{seconds % 60:02}" if with_seconds else shown
