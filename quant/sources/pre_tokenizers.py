"""The named pre-tokenizers of byte-level BPE vocabularies (`tokenizer.ggml.pre`), as tokenizers-library JSON.

A GGUF stores only the name of the rule that splits text before merging; the rule is in the tokenizer.json that the
model was trained with. Sources of names and rules: llama.cpp's llama-vocab.cpp and the models' tokenizer.json files.
"""

from dataclasses import dataclass
from typing import Any, Final

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WHITESPACE: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_WHITESPACE}"
)
_QWEN2: Final = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_WHITESPACE}"
_QWEN35: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_WHITESPACE}"
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_WHITESPACE}"
)
_O200K: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_WHITESPACE}"
)
_DEEPSEEK3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_WHITESPACE}"
)
_CASED_LETTERS: Final = (
    (0x41, 0x5A), (0x61, 0x7A), (0xB5, 0xB5), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1BA), (0x1BC, 0x1BF),
    (0x1C4, 0x293), (0x295, 0x2AF), (0x370, 0x373), (0x376, 0x377), (0x37B, 0x37D), (0x37F, 0x37F), (0x386, 0x386),
    (0x388, 0x38A), (0x38C, 0x38C), (0x38E, 0x3A1), (0x3A3, 0x3F5), (0x3F7, 0x481), (0x48A, 0x52F), (0x531, 0x556),
    (0x10A0, 0x10C5), (0x13A0, 0x13F5), (0x13F8, 0x13FD), (0x1C90, 0x1CBA), (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B),
    (0x1D6B, 0x1D77), (0x1D79, 0x1D9A), (0x1E00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45), (0x1F48, 0x1F4D),
    (0x1F50, 0x1F57), (0x1F59, 0x1F59), (0x1F5B, 0x1F5B), (0x1F5D, 0x1F5D), (0x1F5F, 0x1F7D), (0x1F80, 0x1FB4),
    (0x1FB6, 0x1FBC), (0x1FBE, 0x1FBE), (0x1FC2, 0x1FC4), (0x1FC6, 0x1FCC), (0x1FD0, 0x1FD3), (0x1FD6, 0x1FDB),
    (0x1FE0, 0x1FEC), (0x1FF2, 0x1FF4), (0x1FF6, 0x1FFC), (0x2102, 0x2102), (0x2107, 0x2107), (0x210A, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211D), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212A, 0x212D),
    (0x212F, 0x2134), (0x2139, 0x2139), (0x213C, 0x213F), (0x2145, 0x2149), (0x214E, 0x214E), (0x2183, 0x2184),
    (0x2C00, 0x2C7B), (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE), (0x2CF2, 0x2CF3), (0xA640, 0xA66D), (0xA680, 0xA69B),
    (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E), (0xAB70, 0xABBF), (0xFB00, 0xFB06), (0xFB13, 0xFB17),
    (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB),
    (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2), (0x118A0, 0x118DF), (0x1E900, 0x1E943),
)  # fmt: skip
_PUNCTUATION: Final = (
    (0x21, 0x2F), (0x3A, 0x7E), (0xFF01, 0xFF0F), (0xFF1A, 0xFF5E), (0x2018, 0x201F), (0x3000, 0x3002),
)  # fmt: skip
_ASIAN: Final = ((0x4E00, 0x9FA5), (0x0800, 0x4E00), (0xAC00, 0xD7FF))


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    return "[" + "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges) + "]"


_BLOOM: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of vocabularies splits text.

    steps: tokenizers-library pre-tokenizers. ignore_merges: a piece that is a token is not split further.
    add_bos: whether a sequence begins with BOS by default.
    """

    steps: tuple[dict[str, Any], ...]
    normalizer: str | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS: Final = {"type": "Digits", "individual_digits": True}
_GPT2_FAMILY: Final = PreTokenizer((_byte_level(use_regex=True),))
_SINGLE_DIGITS_FAMILY: Final = PreTokenizer((_DIGITS, _byte_level(use_regex=True)))
_LLAMA3_FAMILY: Final = PreTokenizer((_split(_LLAMA3), _byte_level(use_regex=False)), ignore_merges=True, add_bos=True)
_QWEN2_FAMILY: Final = PreTokenizer((_split(_QWEN2), _byte_level(use_regex=False)), normalizer="NFC")
_QWEN35_FAMILY: Final = PreTokenizer((_split(_QWEN35), _byte_level(use_regex=False)), normalizer="NFC")
_TEKKEN_FAMILY: Final = PreTokenizer((_split(_TEKKEN), _byte_level(use_regex=False)), ignore_merges=True, add_bos=True)
# As Llama 3's in text, without what Llama 3 adds.
_CL100K_FAMILY: Final = PreTokenizer((_split(_LLAMA3), _byte_level(use_regex=False)))
# tiktoken takes a piece that is a token as it is.
_O200K_FAMILY: Final = PreTokenizer((_split(_O200K), _byte_level(use_regex=False)), ignore_merges=True)
_BLOOM_FAMILY: Final = PreTokenizer((_split(_BLOOM), _byte_level(use_regex=False)))
_FALCON_FAMILY: Final = PreTokenizer(
    (
        _split(r"[\p{P}\$\+<=>\^~\|`]+"),
        _split(_GPT2),
        _split(r"[0-9][0-9][0-9]"),
        _byte_level(use_regex=False),
    )
)
_DEEPSEEK_FAMILY: Final = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(rf"\s?{_class(_CASED_LETTERS)}+"),
        _split(rf"\s?{_class(_PUNCTUATION)}+"),
        _split(r"\s+$"),
        _split(rf"{_class(_ASIAN)}+"),
        _DIGITS,
        _byte_level(use_regex=False),
    ),
    add_bos=True,
)
_DEEPSEEK_CODER_FAMILY: Final = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split(rf"{_class(_ASIAN)}+"),
        _DIGITS,
        _byte_level(use_regex=False),
    ),
    add_bos=True,
)
_DEEPSEEK3_FAMILY: Final = PreTokenizer(
    (
        _split(r"\p{N}{1,3}"),
        _split(rf"{_class(((0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF)))}+"),
        _split(_DEEPSEEK3),
        _byte_level(use_regex=False),
    ),
    add_bos=True,
)
# llama.cpp's rule for a vocabulary whose family was unknown when the file was written.
_DEFAULT_FAMILY: Final = PreTokenizer(
    (
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(_GPT2),
        _split(r"\p{N}+"),
        _split(r"[0-9][0-9][0-9]"),
        _byte_level(use_regex=False),
    )
)

PRE_TOKENIZERS: Final = {
    "default": _DEFAULT_FAMILY,
    "gpt-2": _GPT2_FAMILY,
    "olmo": _GPT2_FAMILY,
    "phi-2": _GPT2_FAMILY,
    "smollm": _SINGLE_DIGITS_FAMILY,
    "starcoder": _SINGLE_DIGITS_FAMILY,
    "refact": _SINGLE_DIGITS_FAMILY,
    "codeshell": _SINGLE_DIGITS_FAMILY,
    "llama-bpe": _LLAMA3_FAMILY,
    "llama-v3": _LLAMA3_FAMILY,
    "llama3": _LLAMA3_FAMILY,
    "falcon3": _LLAMA3_FAMILY,
    "lfm2": _LLAMA3_FAMILY,
    "qwen2": _QWEN2_FAMILY,
    "deepseek-r1-qwen": _QWEN2_FAMILY,
    "qwen35": _QWEN35_FAMILY,
    "tekken": _TEKKEN_FAMILY,
    "gpt-4o": _O200K_FAMILY,
    "dbrx": _CL100K_FAMILY,
    "glm4": _CL100K_FAMILY,
    "chatglm-bpe": _CL100K_FAMILY,
    "deepseek-llm": _DEEPSEEK_FAMILY,
    "deepseek-coder": _DEEPSEEK_CODER_FAMILY,
    "deepseek-v3": _DEEPSEEK3_FAMILY,
    "smaug-bpe": _CL100K_FAMILY,
    "bloom": _BLOOM_FAMILY,
    "falcon": _FALCON_FAMILY,
    "mpt": _GPT2_FAMILY,
}
