"""Where each named rule splits a text: pieces worked out from the published patterns by hand."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from quant.sources.pre_tokenizers import PRE_TOKENIZERS

OTHER_LETTERS = "Ünï ὝώỿΐΊ 漢字かな，。한글ქართ"
TEXT = "I'VE seen HelloWorld, 12345 times!!/\n\n  ok"
PIECES = {
    "gpt-4o": ["I'VE", " seen", " Hello", "World", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "dbrx": ["I", "'VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "llama-bpe": ["I", "'VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "mpt": ["I", "'", "VE", " seen", " HelloWorld", ",", " 12345", " times", "!!/", "\n\n ", " ok"],
    "falcon": ["I", "'", "VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/", "\n\n ", " ok"],
    "glm4": ["I", "'VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "deepseek-v3": ["I", "'VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "deepseek-llm": [
        "I", "'", "VE", " seen", " HelloWorld", ",", " ", "1", "2", "3", "4", "5", " times", "!!/", "\n", "\n", " ",
        " ok",
    ],
    "bloom": ["I'VE", " seen", " HelloWorld", ",", " 12345", " times", "!!", "/", "\n\n ", " ok"],
}  # fmt: skip

MARKS = "Zuerich cafe\u0301s 42 \u0915\u093f!\n"
"""A letter with an accent of its own, and a vowel sign: marks stay with their letters in Qwen3.5's rule only."""


def test_marks() -> None:
    assert _pieces("qwen35", MARKS) == ["Zuerich", " cafe\u0301s", " ", "4", "2", " \u0915\u093f", "!\n"]
    assert _pieces("qwen2", MARKS) == ["Zuerich", " cafe", "\u0301s", " ", "4", "2", " \u0915", "\u093f!\n"]


@pytest.mark.parametrize("name", PIECES)
def test_pieces(name: str) -> None:
    assert _pieces(name, TEXT) == PIECES[name]


def _pieces(name: str, text: str) -> list[str]:
    steps = PRE_TOKENIZERS[name].steps
    described = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)},
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    splitter = Tokenizer.from_str(json.dumps(described)).pre_tokenizer
    assert splitter is not None
    ends = [end for _, (_, end) in splitter.pre_tokenize_str(text)]
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def test_letters_that_are_not_latin() -> None:
    """DeepSeek-V2's rules cut one after the other what the one before left, and overlap: ":-~" has Latin letters."""
    found = {name: _pieces(name, OTHER_LETTERS) for name in ("deepseek-llm", "deepseek-v3")}
    assert found["deepseek-llm"] == [
        "Ü", "n", "ï", " ", "Ὕ", "ώ", "ỿ", "ΐΊ", " ", "漢字かな", "，", "。", "한글ქართ",
    ]  # fmt: skip
    assert found["deepseek-v3"] == ["Ünï", " ὝώỿΐΊ", " ", "漢字かな", "，。", "한글ქართ"]


def test_the_letters_are_byte_levels() -> None:
    assert ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(" \n")[0][0] == "ĠĊ"
