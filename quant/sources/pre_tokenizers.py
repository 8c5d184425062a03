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
    "qwen2": _QWEN2_FAMILY,
    "deepseek-r1-qwen": _QWEN2_FAMILY,
    "tekken": _TEKKEN_FAMILY,
    "gpt-4o": _O200K_FAMILY,
    "dbrx": _CL100K_FAMILY,
    "smaug-bpe": _CL100K_FAMILY,
    "bloom": _BLOOM_FAMILY,
    "falcon": _FALCON_FAMILY,
    "mpt": _GPT2_FAMILY,
}
