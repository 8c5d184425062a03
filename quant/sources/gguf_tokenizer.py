"""Converts a GGUF's vocabulary, special tokens and chat template to the tokenizer files of a Hugging Face folder.

ggml's control tokens become added tokens with "special": true, which the service never makes of a user's text; its
user-defined tokens become added tokens that are not special. No merge results in a control token, so that plain text
can't become one. Does not tokenize anything.

For "smollm" vocabularies transformers' own GGUF import (5.23) does not split digits; the result here is that of the
model's original tokenizer.json, which does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from quant.errors import SourceError, UnsupportedModelError
from quant.files.json_file import write_json
from quant.sources.gguf_encoders import word_pieces
from quant.sources.gguf_file import GgufFile
from quant.sources.gguf_metadata import Metadata
from quant.sources.pre_tokenizers import PRE_TOKENIZERS

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_END_KEYS: Final = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_SAMPLING_KEYS: Final = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Keys of the recommended sampling options: transformers' names, and llama.cpp's since its pull request 17120."""
_MODELS: Final = ("gpt2", "llama", "gemma4", "bert")
"""gemma4 is like llama, SentencePiece's BPE of characters, but has its merges in the file."""
_SPACE_MARK: Final = "\u2581"
_NEVER_TAKE_SPACE: Final = ("<unk>", "<s>", "<|endoftext|>")
# Control tokens that end a turn or a text in the families that this engine runs.
END_TOKENS: Final = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>", "<turn|>"}
)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The tokens, ggml's kind of each, and the token ids of roles, by Hugging Face's names of the roles."""

    path: Path
    tokens: list[str]
    ids: dict[str, int]
    kinds: list[int]
    roles: dict[str, int]


def write_gguf_tokenizer(gguf: GgufFile, folder: Path, config: Mapping[str, Any]) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json into `folder`. `config` is the model's.

    Raises:
        UnsupportedModelError: a tokenizer model or a pre-tokenizer that is not known, by name.
        SourceError: metadata that is missing, ill-typed or contradicts itself.
    """
    metadata = Metadata(gguf)
    model = metadata.text("tokenizer.ggml.model")
    if model not in _MODELS:
        known = ", ".join(_MODELS)
        raise UnsupportedModelError(f"{gguf.path}: tokenizer model {model!r} is not supported; supported: {known}")
    vocabulary = _read_vocabulary(gguf, metadata, unique=model != "gemma4")
    if len(vocabulary.tokens) > config["vocab_size"]:
        raise SourceError(f"{gguf.path}: has {len(vocabulary.tokens)} tokens for {config['vocab_size']} embeddings")
    build = {"gpt2": _byte_level_bpe, "bert": _word_pieces}.get(model, _sentencepiece_bpe)
    description, begin_and_end = build(metadata, vocabulary)
    special = {token_id for token_id, kind in enumerate(vocabulary.kinds) if kind in (_UNKNOWN, _CONTROL)}
    special |= set(vocabulary.roles.values())
    takes_space = model == "llama" and metadata.text("general.architecture") == "phi3"
    description["added_tokens"] = [
        _added_token(token_id, vocabulary.tokens[token_id], token_id in special, takes_space)
        for token_id, kind in enumerate(vocabulary.kinds)
        if token_id in special or kind == _USER_DEFINED
    ]
    try:
        Tokenizer.from_str(json.dumps(description)).save(str(folder / "tokenizer.json"), pretty=False)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise SourceError(f"{gguf.path}: its vocabulary makes no tokenizer: {error}") from error
    settings: dict[str, Any] = {role: vocabulary.tokens[token_id] for role, token_id in vocabulary.roles.items()}
    settings["add_bos_token"], settings["add_eos_token"] = begin_and_end
    if "tokenizer.chat_template" in metadata:
        settings["chat_template"] = metadata.text("tokenizer.chat_template")
    settings |= {
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "generation_config.json", _generation_config(metadata, vocabulary))


def _read_vocabulary(gguf: GgufFile, metadata: Metadata, *, unique: bool) -> _Vocabulary:
    """unique: whether a duplicate token is refused; else a text becomes the later one, as in llama.cpp."""
    tokens = metadata.strings("tokenizer.ggml.tokens")
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if unique and len(ids) != len(tokens):
        raise SourceError(f"{gguf.path}: its vocabulary holds a token twice")
    types = metadata.numbers("tokenizer.ggml.token_type", len(tokens))
    kinds = [1] * len(tokens) if types is None else [int(kind) for kind in types]
    roles = {}
    for role, name in {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}.items():
        token_id = _token_id(metadata, f"tokenizer.ggml.{name}_token_id", tokens, gguf.path)
        if token_id is not None:
            roles[role] = token_id
    return _Vocabulary(gguf.path, tokens, ids, kinds, roles)


def _token_id(metadata: Metadata, key: str, tokens: list[str], path: Path) -> int | None:
    if key not in metadata:
        return None
    token_id = metadata.integer(key)
    if token_id >= len(tokens):
        raise SourceError(f"{path}: metadata key {key!r} is {token_id}, outside the vocabulary of {len(tokens)}")
    return token_id


_Built = tuple[dict[str, Any], tuple[bool, bool]]
"""A tokenizer.json without its added tokens, and whether BOS and EOS are added."""


def _byte_level_bpe(metadata: Metadata, vocabulary: _Vocabulary) -> _Built:
    name = metadata.text("tokenizer.ggml.pre")
    family = PRE_TOKENIZERS.get(name)
    if family is None:
        known = ", ".join(PRE_TOKENIZERS)
        raise UnsupportedModelError(f"{vocabulary.path}: pre-tokenizer {name!r} is not supported; supported: {known}")
    merges = _stored_merges(metadata, vocabulary)
    steps = list(family.steps)
    begin_and_end = _begin_and_end(metadata, vocabulary, family.add_bos)
    return {
        "version": "1.0",
        "normalizer": {"type": family.normalizer} if family.normalizer else None,
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _post_processor(vocabulary, *begin_and_end),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "ignore_merges": family.ignore_merges, "vocab": vocabulary.ids, "merges": merges},
    }, begin_and_end


def _word_pieces(metadata: Metadata, vocabulary: _Vocabulary) -> _Built:
    return word_pieces(metadata, vocabulary.tokens, vocabulary.kinds), (True, True)


def _stored_merges(metadata: Metadata, vocabulary: _Vocabulary) -> list[list[str]]:
    merges = [merge.split(" ") for merge in metadata.strings("tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise SourceError(f"{vocabulary.path}: a merge is not two tokens and a space")
    return merges


def _sentencepiece_bpe(metadata: Metadata, vocabulary: _Vocabulary) -> _Built:
    # If a merge could result in a control token, plain text could become one.
    never_merged = (_UNKNOWN, _CONTROL, _BYTE)
    mergeable = {token: i for token, i in vocabulary.ids.items() if vocabulary.kinds[i] not in never_merged}
    if metadata.text("tokenizer.ggml.model") == "gemma4":
        merges = [(left, right) for left, right in _stored_merges(metadata, vocabulary) if left + right in mergeable]
    else:
        scores = metadata.numbers("tokenizer.ggml.scores", len(vocabulary.tokens))
        if scores is None:
            raise SourceError(f"{vocabulary.path}: lacks the metadata key 'tokenizer.ggml.scores'")
        merges = merges_from_scores(mergeable, scores.tolist())
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE_MARK})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    begin_and_end = _begin_and_end(metadata, vocabulary, add_bos=True)
    return {
        "version": "1.0",
        # A normalizer sees each section between added tokens. SentencePiece puts a space before each; Metaspace would
        # put none before one that begins with a space.
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _post_processor(vocabulary, *begin_and_end),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": vocabulary.tokens[vocabulary.roles.get("unk_token", 0)],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary.ids,
            "merges": merges,
        },
    }, begin_and_end


def merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE vocabulary: any two tokens whose text is a third token, best first.

    A merge has the score of its result. Of several merges with one result, that with the longer left part comes first,
    as in transformers' generate_merges.
    """
    merges = [
        (scores[token_id], cut, len(token) - cut, token)
        for token, token_id in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(token[:cut], token[cut:]) for _, cut, _, token in merges]


def _begin_and_end(metadata: Metadata, vocabulary: _Vocabulary, add_bos: bool) -> tuple[bool, bool]:
    """Whether a sequence begins with BOS (by default `add_bos`) and ends with EOS (by default not)."""
    begin = metadata.flag("tokenizer.ggml.add_bos_token", default=add_bos)
    end = metadata.flag("tokenizer.ggml.add_eos_token", default=False)
    return begin and "bos_token" in vocabulary.roles, end and "eos_token" in vocabulary.roles


def _post_processor(vocabulary: _Vocabulary, add_bos: bool, add_eos: bool) -> dict[str, Any]:
    begin = [vocabulary.roles["bos_token"]] if add_bos else []
    end = [vocabulary.roles["eos_token"]] if add_eos else []
    tokens = vocabulary.tokens

    def template(sequence: str, type_id: int) -> list[dict[str, Any]]:
        pieces: list[dict[str, Any]] = [{"SpecialToken": {"id": tokens[i], "type_id": type_id}} for i in begin]
        pieces.append({"Sequence": {"id": sequence, "type_id": type_id}})
        return pieces + [{"SpecialToken": {"id": tokens[i], "type_id": type_id}} for i in end]

    return {
        "type": "TemplateProcessing",
        "single": template("A", 0),
        "pair": template("A", 0) + template("B", 1),
        "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in begin + end},
    }


def _added_token(token_id: int, content: str, special: bool, takes_space: bool) -> dict[str, Any]:
    """takes_space: whether the token includes following white space, as in Phi-3, which the file does not say."""
    rstrip = takes_space and content not in _NEVER_TAKE_SPACE
    flags = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False, "special": special}
    return {"id": token_id, "content": content, **flags}


def _generation_config(metadata: Metadata, vocabulary: _Vocabulary) -> dict[str, Any]:
    ends = [vocabulary.roles.get("eos_token")]
    ends += [_token_id(metadata, key, vocabulary.tokens, vocabulary.path) for key in _END_KEYS]
    ends += [
        token_id
        for token, token_id in vocabulary.ids.items()
        if token in END_TOKENS and vocabulary.kinds[token_id] in (_CONTROL, _USER_DEFINED)
    ]
    generation: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    for role in ("bos_token", "pad_token"):
        if role in vocabulary.roles:
            generation[f"{role}_id"] = vocabulary.roles[role]
    for name, key in _SAMPLING_KEYS.items():
        if key in metadata:
            generation[name] = metadata.integer(key) if name == "top_k" else metadata.number(key)
    return generation
