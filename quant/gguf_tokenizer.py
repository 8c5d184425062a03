"""A GGUF's vocabulary, special tokens and chat template -> the tokenizer files of a Hugging Face folder.

Does not tokenize anything; `app.chat` does, with what is written here. How to keep special tokens that a user
types as text, and still get the very ids of `encode(rendered_template)` elsewhere: in each message's content
put a private marker in place of every special token (`added_tokens` with "special": true); render the
template; split the result at the special tokens that are left, which are the template's own; put the texts
back for the markers; encode each piece with `add_special_tokens=False` on a Tokenizer whose
`encode_special_tokens` is True (then special tokens in its input are plain text); and join with the ids of
the special tokens between. A rendered template already holds its BOS.

For "smollm" vocabularies transformers' own GGUF import (5.23) forgets to split digits; the result here is
that of the model's original tokenizer.json, which does ("a  12": two spaces are one token).
"""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from quant.errors import SourceError, UnsupportedModelError
from quant.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from quant.sources.gguf_config import Metadata
from quant.sources.gguf_file import GgufFile

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_END_KEYS: Final = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_SPACE_MARK: Final = "\u2581"
# Control tokens that end a turn or a text in the families that this engine runs.
END_TOKENS: Final = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>"}
)


def write_gguf_tokenizer(gguf: GgufFile, folder: Path, context_tokens: int) -> None:
    """Writes the three files into `folder`.

    Raises:
        UnsupportedModelError: a tokenizer model or a pre-tokenizer that is not known, by name.
        SourceError: metadata that is missing, ill-typed or contradicts itself.
    """
    metadata = Metadata(gguf)
    model = metadata.text("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModelError(f"{gguf.path}: tokenizer model {model!r} is not supported; supported: gpt2, llama")
    tokens = metadata.strings("tokenizer.ggml.tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise SourceError(f"{gguf.path}: its vocabulary holds a token twice")
    types = metadata.numbers("tokenizer.ggml.token_type", len(tokens))
    kinds = [1] * len(tokens) if types is None else [int(kind) for kind in types]
    if model == "gpt2":
        description = _byte_level_bpe(gguf, metadata, vocab)
    else:
        description = _sentencepiece_bpe(gguf, metadata, tokens, vocab, kinds)
    special = {token_id for token_id, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL)}
    special |= set(_named_ids(metadata, len(tokens)).values())
    description["added_tokens"] = [
        _added_token(token_id, tokens[token_id], token_id in special)
        for token_id, kind in enumerate(kinds)
        if token_id in special or kind == _USER_DEFINED
    ]
    try:
        Tokenizer.from_str(json.dumps(description)).save(str(folder / "tokenizer.json"), pretty=False)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise SourceError(f"{gguf.path}: its vocabulary makes no tokenizer: {error}") from error
    _write_configs(gguf, metadata, folder, tokens, kinds, context_tokens)


def _byte_level_bpe(gguf: GgufFile, metadata: Metadata, vocab: dict[str, int]) -> dict[str, Any]:
    name = metadata.text("tokenizer.ggml.pre")
    family = PRE_TOKENIZERS.get(name)
    if family is None:
        known = ", ".join(PRE_TOKENIZERS)
        raise UnsupportedModelError(f"{gguf.path}: pre-tokenizer {name!r} is not supported; supported: {known}")
    merges = [merge.split(" ") for merge in metadata.strings("tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise SourceError(f"{gguf.path}: a merge is not two tokens and a space")
    steps = list(family.steps)
    return {
        "version": "1.0",
        "normalizer": {"type": family.normalizer} if family.normalizer else None,
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _post_processor(metadata, vocab, family),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "ignore_merges": family.ignore_merges, "vocab": vocab, "merges": merges},
    }


def _sentencepiece_bpe(
    gguf: GgufFile, metadata: Metadata, tokens: list[str], vocab: dict[str, int], kinds: list[int]
) -> dict[str, Any]:
    scores = metadata.numbers("tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise SourceError(f"{gguf.path}: lacks the metadata key 'tokenizer.ggml.scores'")
    # A control token made by a merge would let plain text become one.
    mergeable = {
        token: token_id for token, token_id in vocab.items() if kinds[token_id] not in (_UNKNOWN, _CONTROL, _BYTE)
    }
    unknown = tokens[metadata.integer("tokenizer.ggml.unknown_token_id", 0)]
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    family = PreTokenizer((), add_bos=True)
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _SPACE_MARK,
            "prepend_scheme": "first" if prefix else "never",
            "split": False,
        },
        "post_processor": _post_processor(metadata, vocab, family),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": merges_from_scores(mergeable, scores.tolist()),
        },
    }


def merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies: any two tokens that make a third, best first.

    The score is the made token's. Among the ways to make one token the longer left part comes first, as in
    transformers' generate_merges.
    """
    merges = [
        (scores[token_id], cut, len(token) - cut, token)
        for token, token_id in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(token[:cut], token[cut:]) for _, cut, _, token in merges]


def _post_processor(metadata: Metadata, vocab: dict[str, int], family: PreTokenizer) -> dict[str, Any]:
    ids = _named_ids(metadata, len(vocab))
    tokens = {token_id: token for token, token_id in vocab.items()}
    begin, end = [], []
    if metadata.flag("tokenizer.ggml.add_bos_token", default=family.add_bos) and "bos_token" in ids:
        begin.append(ids["bos_token"])
    if metadata.flag("tokenizer.ggml.add_eos_token", default=False) and "eos_token" in ids:
        end.append(ids["eos_token"])

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


def _named_ids(metadata: Metadata, vocab_size: int) -> dict[str, int]:
    """The ids of the tokens that have a role, by Hugging Face's name of the role."""
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {}
    for role, name in roles.items():
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            token_id = metadata.integer(key)
            if token_id >= vocab_size:
                raise SourceError(f"metadata key {key!r} is {token_id}, outside the vocabulary of {vocab_size}")
            ids[role] = token_id
    return ids


def _added_token(token_id: int, content: str, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": token_id, "content": content, **flags}


def _write_configs(
    gguf: GgufFile, metadata: Metadata, folder: Path, tokens: list[str], kinds: list[int], context_tokens: int
) -> None:
    ids = _named_ids(metadata, len(tokens))
    config: dict[str, Any] = {role: tokens[token_id] for role, token_id in ids.items()}
    post = json.loads((folder / "tokenizer.json").read_text())["post_processor"]["single"]
    config["add_bos_token"] = "SpecialToken" in post[0]
    config["add_eos_token"] = "SpecialToken" in post[-1]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata.text("tokenizer.chat_template")
    config |= {
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    ends = [ids["eos_token"]] if "eos_token" in ids else []
    named = [key for key in _END_KEYS if key in metadata]
    ends += [token_id for key in named if (token_id := metadata.integer(key)) < len(tokens)]
    ends += [i for i, token in enumerate(tokens) if token in END_TOKENS and kinds[i] in (_CONTROL, _USER_DEFINED)]
    generation: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))}
    for role in ("bos_token", "pad_token"):
        if role in ids:
            generation[f"{role}_id"] = ids[role]
    for name, content in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
