"""Text in any usual encoding, and CSV as a table."""

import codecs
import csv
import unicodedata
from io import StringIO
from typing import Final

from app.documents.document import KINDS_SHOWN, DocumentError
from app.documents.encoding import detected
from app.documents.markdown import table

ENCODINGS: Final = """ascii big5 cp1250 cp1251 cp1252 cp437 cp850 cp866 euc_jp euc_kr gb18030 gb2312 gbk iso2022_jp
iso8859_1 iso8859_2 iso8859_5 iso8859_7 iso8859_9 iso8859_15 koi8_r koi8_u latin_1 mac_roman shift_jis utf_16
utf_16_be utf_16_le utf_32 utf_7 utf_8 utf_8_sig unicode_escape raw_unicode_escape"""
"""Those that can still be had when no file can be opened any more, beside those that are detected."""
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS: Final = bytes([*range(9), *range(14, 27), *range(28, 32), 127])
_MOST_CONTROLS: Final = 0.01
"""The share of control characters from which on bytes are no text."""
_NO_TEXT: Final = ("Cc", "Cn", "Co", "Cs")
_MOST_DAMAGED: Final = 0.05
"""The share of what is not ASCII up to which UTF-8 is damaged, and no other encoding."""
_MOST_STRAY: Final = 0.01
"""The share of all characters up to which bytes are damage where they are in no encoding."""
_FEWEST_ZEROS: Final = 4
"""Of text in UTF-16, and at least one in 400 bytes: fewer are stray ones in another encoding."""
_DAMAGED: Final = "Some of its characters are damaged."
_READ_AS: Final = "It does not say its encoding: it was read as {}."

_SNIFFED: Final = 4096
"""Characters of CSV that say what separates its cells: the search takes cubic time where quotes are odd."""


def decoded(data: bytes, declared: str | None = None) -> tuple[str, list[str]]:
    """Returns bytes as text, and notes. declared: the encoding that the text itself names. Raises DocumentError."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return data.decode(encoding, "replace"), []
    controls = _controls(data)
    is_binary = controls > max(8, len(data) * _MOST_CONTROLS)
    if b"\0" in data and (is_binary or not _is_utf_8(data)):
        text = _utf_16(data)
        if text is not None:
            return text, [_READ_AS.format("UTF-16")]
    if is_binary:
        raise DocumentError(f"is no kind of document that is read here: {KINDS_SHOWN} are")
    if b"\x1b$" in data and data.isascii():
        return data.decode("iso2022_jp", "replace"), [_READ_AS.format("ISO-2022-JP")]
    for tried in ("utf-8", declared or "utf-8"):
        try:
            return data.decode(tried), []
        except (UnicodeError, LookupError, OSError):  # a codec that is not there can't be looked for
            continue
    if _is_cut_utf_8(data):
        return data.decode("utf-8", "replace"), [_DAMAGED]
    text = data.decode("utf-8", "replace")
    damaged, beyond_ascii = text.count("\ufffd"), len(text) - len(text.encode("ascii", "ignore"))
    encoding_found = detected(data) if damaged > _MOST_DAMAGED * beyond_ascii else None
    if encoding_found is not None:
        return data.decode(encoding_found.codec, "replace"), [_READ_AS.format(encoding_found.shown)]
    if damaged > max(_MOST_DAMAGED * beyond_ascii, _MOST_STRAY * len(text)):
        raise DocumentError("is text in an encoding that is not recognized: save it as UTF-8")
    return text, [_DAMAGED]


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_cut_utf_8(data: bytes) -> bool:
    """Whether bytes are UTF-8 up to their last character, which is not whole. One alone may be of any encoding."""
    try:
        return not codecs.getincrementaldecoder("utf-8")().decode(data).isascii()
    except UnicodeDecodeError:
        return False


def _controls(data: bytes) -> int:
    return len(data) - len(data.translate(None, _CONTROLS))


def _utf_16(data: bytes) -> str | None:
    """Returns text whose zeros are each one half of a character, the same of all; None: it is none."""
    others = data.translate(None, b"\0")
    are_few = len(data) - len(others) < len(data) / 4
    evens, odds = data[::2].count(0), data[1::2].count(0)
    most = max(evens, odds)
    are_stray = most < max(_FEWEST_ZEROS, len(data) // 400) or (are_few and detected(others) is not None)
    if are_stray and not _controls(others):  # which UTF-16 has of most scripts
        return None
    if min(evens, odds) > most / 16:
        return None
    try:
        text = data[: len(data) // 2 * 2].decode("utf-16-le" if odds > evens else "utf-16-be")
    except UnicodeDecodeError:
        return None
    strange = sum(unicodedata.category(char) in _NO_TEXT and char not in "\t\n\r\f" for char in text[:_SNIFFED])
    return None if strange > min(len(text), _SNIFFED) * _MOST_CONTROLS else text


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
