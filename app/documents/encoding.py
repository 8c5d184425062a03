"""Which encoding bytes are in that are no UTF-8: the one in which they spell words of a language."""

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SAMPLE_BYTES: Final = 32 << 10
_LEAST_SCORE: Final = 0.6
_WESTERN_LETTERS: Final = frozenset("àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿßœ")
_LEAST_WESTERN: Final = 0.9
"""The share of these letters from which on a text of several languages, such as a list of names, is Western."""
_LEAST_MIXED: Final = 0.8
"""The share of words with such letters that have others too: in wrong encodings whole words look so."""
_BETWEEN_WORDS: Final = r"\s\x00-@\[-`{-\x7f\xa0·«»‹›„“”‚‘’–—…•、。「」『』（）《》，：；！？"
_WORDS: Final = re.compile(f"[^{_BETWEEN_WORDS}]+")
_SIGNS: Final = "¡¿€£¥§©®°±¹²³ªº½¼¾×÷№™µ"
"""They stand at words and are not counted; within one they show that it is none."""
_CYRILLIC: Final = "абвгдежзийклмнопрстуфхцчшщъыьэюяёіїєґў"
_COMMON_CHINESE: Final = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然"
    "家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机"
    "十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西"
    "斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打"
    "女变四神总何电数安少报才结反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五"
    "基眼书非则听白却界达光放强即像难且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清"
    "约款租付款甲乙双人房屋元"
)
_TRADITIONAL: Final = (
    "這個們來為國說時會對過發後種經麼學當沒動還進樣開從實無與長機關點業將兩間問並應戰頭體見產話給門東聲員論處義幾認條"
    "氣題爾別變總電數報結務場計資許統區隊決馬聽書則卻達強難權設記類據邊張該規萬覺術領確傳師觀約雙"
)


@dataclass(frozen=True, slots=True)
class Encoding:
    """One that bytes may be in, and what a language's texts look like in it."""

    codec: str
    shown: str
    letters: frozenset[str]
    """Beyond ASCII, in lower case."""
    frequent: frozenset[str] = frozenset()
    """Letters that are half of a text or more; empty: not looked at."""
    mixes: bool = False
    """Whether one word may have letters of ASCII too."""
    least_share: float = 0.5
    """Of the frequent letters, from which on a text looks as it should."""


def _letters(*ranges: tuple[int, int]) -> frozenset[str]:
    return frozenset(chr(code).lower() for first, last in ranges for code in range(first, last + 1))


def _latin(codec: str, shown: str, *languages: str) -> list[Encoding]:
    return [Encoding(codec, shown, frozenset(letters), mixes=True) for letters in languages]


_HAN: Final = _letters((0x4E00, 0x9FFF), (0x3007, 0x3007))
_KANA: Final = _letters((0x3041, 0x309F), (0x30A1, 0x30FC))
_HANGUL: Final = _letters((0xAC00, 0xD7A3))
_FREQUENT_HANGUL: Final = frozenset(
    "이다는에의을가고하지를은한인로기도사대어자나리정시서해들그여일으아전만수있라부주것우보과상니용스"
)

_ENCODINGS: Final = (
    *_latin(
        "cp1252", "Windows-1252", "äöüß", "àâçèéêëîïôùûüœæ", "áéíñóúü", "àáâãçêéíóôõú", "àèéìòù", "åäöøæéü", "éëïöüèá"
    ),
    *_latin("cp1250", "Windows-1250", "ąćęłńóśźż", "áäčďéěíňóôřšťúůýž", "áéíóöőúüű", "ăâîşţ", "čćđšž"),
    *_latin("cp1252", "Windows-1252", "àèéíïòóúüç", "áæéíðóöþúý", "áðíóúýæø"),  # a few Czech words look like these
    *_latin("cp1250", "Windows-1250", "áäčďéěíĺľňóôŕřšťúůýž"),  # and Catalan looks like this
    *_latin("iso8859_2", "ISO 8859-2", "ąćęłńóśźż", "áäčďéěíĺľňóôŕřšťúůýž"),
    *_latin("cp1254", "Windows-1254", "çğıöşüâî\u0307"),
    *_latin("cp1257", "Windows-1257", "ąčęėįšųūž", "āčēģīķļņšūž"),
    Encoding("cp1251", "Windows-1251", frozenset(_CYRILLIC), frozenset("оеаинтсрвл")),
    Encoding("koi8_r", "KOI8-R", frozenset(_CYRILLIC), frozenset("оеаинтсрвл")),
    Encoding("iso8859_5", "ISO 8859-5", frozenset(_CYRILLIC), frozenset("оеаинтсрвл")),
    Encoding("cp1253", "Windows-1253", _letters((0x0390, 0x03CE)), frozenset("αοιετσνηυρ")),
    Encoding("cp1255", "Windows-1255", _letters((0x05D0, 0x05EA)), frozenset("יוהלאתרמ")),
    Encoding("cp1256", "Windows-1256", _letters((0x0621, 0x0652)), frozenset("اليمنورتهب")),
    Encoding("iso8859_6", "ISO 8859-6", _letters((0x0621, 0x0652)), frozenset("اليمنورتهب")),
    Encoding("cp874", "Windows-874", _letters((0x0E01, 0x0E4E)), frozenset("านรอกเงมยลวดทส่้ตี")),
    Encoding("gb18030", "GB 18030", _HAN, frozenset(_COMMON_CHINESE), mixes=True, least_share=0.3),
    Encoding("big5", "Big5", _HAN, frozenset(_COMMON_CHINESE + _TRADITIONAL), mixes=True, least_share=0.3),
    Encoding("cp932", "Shift JIS", _HAN | _KANA, _KANA, mixes=True, least_share=0.2),
    Encoding("euc_jp", "EUC-JP", _HAN | _KANA, _KANA, mixes=True, least_share=0.2),
    Encoding("cp949", "EUC-KR", _HANGUL, _FREQUENT_HANGUL, mixes=True, least_share=0.3),
)
CODECS: Final = ("iso2022_jp", *dict.fromkeys(one.codec for one in _ENCODINGS))


def detected(data: bytes) -> Encoding | None:
    """Returns the encoding in which bytes with others than ASCII spell words; None: there is none."""
    sample = _sample(data)
    best = max(_ENCODINGS, key=lambda one: _score(sample, one))  # the first of several that are as good
    if _score(sample, best) >= _LEAST_SCORE:
        return best
    return _ENCODINGS[0] if _is_western(sample) else None


def _sample(data: bytes) -> bytes:
    """Returns some of the bytes, from the line on that has the first one beyond ASCII."""
    first = re.search(rb"[\x80-\xff]", data)
    at = 0 if first is None else first.start()
    start = data.rfind(b"\n", max(at - 1024, 0), at) + 1 or max(at - 1024, 0)
    return data[start : start + _SAMPLE_BYTES]


def _score(sample: bytes, encoding: Encoding) -> float:
    """Returns the share of what is not ASCII that looks like the encoding's language, from 0 to 1."""
    try:
        beyond = _words_beyond_ascii(sample, encoding.codec)
    except UnicodeDecodeError:
        return 0
    count = sum(char > "\x7f" for word in beyond for char in word)
    if not count:
        return float(encoding.codec == "cp1252")  # signs alone
    fitting = [char for word in beyond if _is_cased(word) for char in _fitting(word, encoding)]
    if not fitting:
        return 0
    share = sum(char in encoding.frequent for char in fitting) / len(fitting) if encoding.frequent else 1
    return len(fitting) / count * min(1, share / encoding.least_share)


def _is_western(sample: bytes) -> bool:
    """Whether a text has letters of Western languages, of more than one of them."""
    try:
        beyond = _words_beyond_ascii(sample, "cp1252")
    except UnicodeDecodeError:
        return False
    cased = "".join(word for word in beyond if _is_cased(word)).lower()
    count = sum(char > "\x7f" for word in beyond for char in word)
    mixed = sum(any(char.isascii() and char.isalpha() for char in word) for word in beyond)
    is_of_letters = sum(char in _WESTERN_LETTERS for char in cased) >= _LEAST_WESTERN * count
    return is_of_letters and mixed >= _LEAST_MIXED * len(beyond)


def _words_beyond_ascii(sample: bytes, codec: str) -> list[str]:
    """Returns the words that are not of ASCII alone. Raises UnicodeDecodeError."""
    text = codecs.getincrementaldecoder(codec)().decode(sample)  # its end may be within a character
    return [word for found in _WORDS.findall(text) if not (word := found.strip(_SIGNS)).isascii()]


def _fitting(word: str, encoding: Encoding) -> Iterable[str]:
    letters = word.lower()
    has_ascii = any("a" <= char <= "z" for char in letters)
    return () if has_ascii and not encoding.mixes else [char for char in letters if char in encoding.letters]


def _is_cased(word: str) -> bool:
    """Whether capital letters stand where they do in words: where not, another encoding has lower case."""
    return word[1:] == word[1:].lower() or word == word.upper()
