"""Where each named rule splits a text: pieces worked out from the published patterns by hand."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from quant.sources.pre_tokenizers import PRE_TOKENIZERS

TEXT = "I'VE seen HelloWorld, 12345 times!!/\n\n  ok"
PIECES = {
    "gpt-4o": ["I'VE", " seen", " Hello", "World", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "dbrx": ["I", "'VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "llama-bpe": ["I", "'VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/\n\n", " ", " ok"],
    "mpt": ["I", "'", "VE", " seen", " HelloWorld", ",", " 12345", " times", "!!/", "\n\n ", " ok"],
    "falcon": ["I", "'", "VE", " seen", " HelloWorld", ",", " ", "123", "45", " times", "!!/", "\n\n ", " ok"],
    "bloom": ["I'VE", " seen", " HelloWorld", ",", " 12345", " times", "!!", "/", "\n\n ", " ok"],
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces(name: str) -> None:
    steps = PRE_TOKENIZERS[name].steps
    described = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)},
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    splitter = Tokenizer.from_str(json.dumps(described)).pre_tokenizer
    assert splitter is not None
    assert [_text(piece) for piece, _ in splitter.pre_tokenize_str(TEXT)] == PIECES[name]


def _text(piece: str) -> str:
    """A piece whose bytes were written as letters."""
    return piece.replace("Ġ", " ").replace("Ċ", "\n")


def test_the_letters_are_byte_levels() -> None:
    assert ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(" \n")[0][0] == "ĠĊ"
