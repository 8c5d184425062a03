"""GGUF's encoders, BERT and NomicBERT: their metadata as Hugging Face's, their names of tensors, their vocabulary.

Sources: llama.cpp's convert_hf_to_gguf.py, llama-arch.cpp and llama-vocab.cpp.
"""

from collections.abc import Sequence
from typing import Any, Final

from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Decoder
from quant.families.modules import Modules, Stored, fused_in_thirds
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata

_POOLINGS: Final = {1: "mean", 2: "first", 3: "last"}
_NORMAL: Final = 1
_WORD_MARK: Final = "\u2581"
_PARTS: Final[Modules] = {
    "model.embed_positions": "position_embd",
    "attention_output_norm": "attn_output_norm",
    "mlp_output_norm": "layer_output_norm",
}


def bert_config(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    """BERT; vectors have length 1, as llama.cpp's server makes them."""
    return {
        **_encoder(metadata, gguf, "bert"), "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
    }  # fmt: skip


def nomic_bert_config(metadata: Metadata, gguf: GgufFile) -> dict[str, Any]:
    """NomicBERT, with a gated MLP in all layers."""
    return {
        **_encoder(metadata, gguf, "nomic-bert"), "architectures": ["NomicBertModel"], "model_type": "nomic_bert",
        "hidden_act": "silu",
    }  # fmt: skip


def _encoder(metadata: Metadata, gguf: GgufFile, arch: str) -> dict[str, Any]:
    if metadata.flag(f"{arch}.attention.causal", default=False):
        raise UnsupportedModelError(f"{gguf.path}: {arch}.attention.causal is not supported")
    pooling = metadata.integer(f"{arch}.pooling_type", 1)
    if pooling not in _POOLINGS:
        raise UnsupportedModelError(f"{gguf.path}: {arch}.pooling_type {pooling} is not supported; supported: 1 to 3")
    types = gguf.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": metadata.number(f"{arch}.attention.layer_norm_epsilon"),
        "type_vocab_size": 0 if types is None else types.shape[0],
        "sentence_transformers": {"pooling": _POOLINGS[pooling], "normalize": True, "dense": []},
    }


def bert_parts(_: Decoder) -> Modules:
    """Modules whose names are not the usual ones."""
    return {**_PARTS, "model.embed_types": "token_types"}


def nomic_bert_parts(decoder: Decoder) -> Modules:
    """The same; a text's tokens are all of the first of two types."""
    hidden, rows = decoder.hidden_size, decoder.query_dim_of(decoder.attention(0))
    return {
        **_PARTS,
        **fused_in_thirds("attn_qkv", rows),
        "model.embed_types": Stored("token_types", slice(0, hidden), padding=hidden),
    }


def word_pieces(metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """The tokenizer.json of a WordPiece vocabulary, without its added tokens.

    A word's beginning has a mark in the file, and what goes on with a word has none. Raises SourceError.
    """
    pieces = [
        token if kind != _NORMAL or _is_bracketed(token) else token.removeprefix(_WORD_MARK)
        if token.startswith(_WORD_MARK) else f"##{token}"
        for token, kind in zip(tokens, kinds, strict=True)
    ]  # fmt: skip
    vocab = {piece: number for number, piece in enumerate(pieces)}
    first = _special(metadata, "cls" if "tokenizer.ggml.cls_token_id" in metadata else "bos", len(tokens))
    last, unknown = (_special(metadata, name, len(tokens)) for name in ("seperator", "unknown"))
    begin, end = ({"SpecialToken": {"id": pieces[number], "type_id": 0}} for number in (first, last))
    text, other = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", 1)))
    return {
        "version": "1.0",
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": all(_is_bracketed(piece) or piece == piece.lower() for piece in pieces),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text, end],
            "pair": [begin, text, end, other, {"SpecialToken": {"id": pieces[last], "type_id": 1}}],
            "special_tokens": {
                pieces[number]: {"id": pieces[number], "ids": [number], "tokens": [pieces[number]]}
                for number in (first, last)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": pieces[unknown], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    }  # fmt: skip


def _is_bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")


def _special(metadata: Metadata, name: str, count: int) -> int:
    number = metadata.integer(f"tokenizer.ggml.{name}_token_id")
    if number >= count:
        raise SourceError(f"the metadata key 'tokenizer.ggml.{name}_token_id' is {number}, outside the vocabulary")
    return number
