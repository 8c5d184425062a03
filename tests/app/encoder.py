"""An encoder without weights: a WordPiece tokenizer of a few words, as BERT has it."""

from collections.abc import Mapping
from typing import Any

from app.interface.text.encoder_model import EncoderModel

WORDS = ("the", "fox", "dog", "is", "old", "##er", "query", ":", "[", "]", "sep", "cls")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CLS, SEP = 2, 3


def tokenizer_json() -> dict[str, Any]:
    """WordPiece, as BERT has it."""
    vocab = {token: number for number, token in enumerate((*SPECIAL, *WORDS))}
    special = [
        {
            "id": vocab[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for token in SPECIAL
    ]  # fmt: skip

    def piece(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    return {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0)],
            "pair": [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0), text("B", 1), piece("[SEP]", 1)],
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (("[CLS]", 2), ("[SEP]", 3))
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    }  # fmt: skip


def config(**encoder: Any) -> Mapping[str, Any]:
    settings = {"task": "embed", "dimensions": 4, "normalized": True, "max_tokens": 8, **encoder}
    return {"vocab_size": len(SPECIAL) + len(WORDS), "redoubt_encoder": settings}


def encoder(**settings: Any) -> EncoderModel:
    return EncoderModel(tokenizer=tokenizer_json(), config=config(**settings))
