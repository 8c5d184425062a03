"""Checks that a model can draft for another one: both have the same token for every number.

Reads the tokenizers' vocabularies; of an EAGLE-3 head, which has none, the sizes. Knows no weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.model_folder import ModelFolder, is_draft_head, read_json


class DraftError(ValueError):
    """The model can't draft for the other; the message is for `model.draft`."""


def check_draft(target: ModelFolder, target_name: str, draft: Path) -> None:
    """Raises DraftError unless the folder `draft` has the vocabulary of the model `target`, or is a head of its sizes.

    Raises ChatModelError.
    """
    config = read_json(draft / "config.json", optional=True)
    if is_draft_head(config):
        _check_head(config, read_json(target / "config.json"), target_name, draft)
        return
    theirs, added = _vocabulary(read_json(target / "tokenizer.json"))
    ours, also_added = _vocabulary(read_json(draft / "tokenizer.json"))
    for token in sorted(theirs.keys() | ours.keys()):
        known, drafted = theirs.get(token), ours.get(token)
        if known == drafted or (known is None and token in also_added) or (drafted is None and token in added):
            continue
        raise DraftError(
            f"{draft} has another vocabulary than {target_name}: token {token} is {_shown(drafted)} there and"
            f" {_shown(known)} here. A draft model must be of the same family, as Qwen3-0.6B is for Qwen3-8B"
        )


def _check_head(head: Mapping[str, Any], target: Mapping[str, Any], target_name: str, draft: Path) -> None:
    for key, what in (("hidden_size", "a hidden size"), ("vocab_size", "a vocabulary")):
        if head.get(key) != target.get(key):
            raise DraftError(
                f"{draft} is an EAGLE-3 head for {what} of {head.get(key)}, and {target_name} has {target.get(key)}. A"
                " head drafts only for the model that it was trained with"
            )


def _shown(text: str | None) -> str:
    return "missing" if text is None else f"{text!r:.40}"


def _vocabulary(tokenizer: Mapping[str, Any]) -> tuple[dict[int, str], set[int]]:
    """The tokens by number, and which of them were added to the vocabulary."""
    vocab = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocab, Mapping):
        tokens = {int(number): str(text) for text, number in vocab.items()}
    else:  # a list of pieces with their scores
        tokens = {number: str(piece[0]) for number, piece in enumerate(vocab)}
    tokens = {number: text for number, text in tokens.items() if text != f"[PAD{number}]"}  # rows that fill up a GGUF's
    added = {int(one["id"]): str(one["content"]) for one in tokenizer.get("added_tokens") or []}
    return tokens | added, added.keys() - tokens.keys() | {n for n in added if added[n] != tokens.get(n)}
