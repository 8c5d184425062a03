"""Text in any usual encoding, and CSV as a table."""

import codecs
import csv
from io import StringIO
from typing import Final

from app.documents.document import KINDS_SHOWN, DocumentError
from app.documents.markdown import table

ENCODINGS: Final = """ascii big5 cp1250 cp1251 cp1252 cp437 euc_jp euc_kr gb18030 gb2312 gbk iso2022_jp iso8859_1
iso8859_2 iso8859_5 iso8859_7 iso8859_9 iso8859_15 koi8_r koi8_u latin_1 mac_roman shift_jis utf_16
utf_16_be utf_16_le utf_32 utf_7 utf_8 utf_8_sig unicode_escape raw_unicode_escape"""
"""Those that can still be had when no file can be opened any more."""
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MOST_CONTROLS: Final = 0.01
"""The share of control characters from which on bytes are no text."""

_SNIFFED: Final = 4096
"""Characters of CSV that say what separates its cells: the search takes cubic time where quotes are odd."""


def decoded(data: bytes, declared: str | None = None) -> str:
    """Returns bytes as text. declared: the encoding that the text itself names. Raises DocumentError."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return data.decode(encoding, "replace")
    if b"\0" in data[:4096]:
        evens, odds = data[:4096:2].count(0), data[1:4096:2].count(0)
        if max(evens, odds) > 0.3 * min(len(data), 4096) / 2 and min(evens, odds) < max(evens, odds) / 4:
            return data.decode("utf-16-le" if odds > evens else "utf-16-be", "replace")
    controls = len(data) - len(data.translate(None, bytes([*range(9), *range(14, 27), *range(28, 32), 127])))
    if controls > max(8, len(data) * _MOST_CONTROLS):
        raise DocumentError(f"is no kind of document that is read here: {KINDS_SHOWN} are")
    for tried in ("utf-8", declared or "utf-8"):
        try:
            return data.decode(tried)
        except (UnicodeError, LookupError):
            continue
    return data.decode("cp1252", "replace")


def csv_table(text: str) -> str:
    """Returns CSV as a table; the text itself if it is none."""
    try:
        dialect: type[csv.Dialect] | csv.Dialect = csv.Sniffer().sniff(text[:_SNIFFED], ",;\t|")
    except csv.Error:
        dialect = csv.excel
    try:
        return table(csv.reader(StringIO(text), dialect))
    except csv.Error:
        return text
