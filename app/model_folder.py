"""Reads a converted model's JSON files: its chat template, its special tokens, its context length.

Checks the types of what it reads. Knows neither the tokenizer nor the weights, nor whether the model is sealed.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

SMALL_FILES: Final = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""What this file and the tokenizer are read from; all but the first two may be missing."""
WEIGHTS: Final = "model.safetensors"
ENCODER: Final = "redoubt_encoder"
"""The key of a converted encoder's configuration."""
DRAFT_HEAD: Final = "LlamaForCausalLMEagle3"
"""The architecture in a converted EAGLE-3 head's configuration."""


class ChatModelError(ValueError):
    """The model folder can't be served; the message names the file and the reason."""


class ModelFile(Protocol):
    """A model's file, which may be missing. Its `str` names it in messages."""

    def is_file(self) -> bool: ...

    def read_text(self, encoding: str) -> str:
        """Returns the whole text. Raises FileNotFoundError, another OSError, ValueError."""


class ModelFolder(Protocol):
    """A converted model: a folder (Path), or a sealed model (`app.sealing`)."""

    def __truediv__(self, name: str, /) -> ModelFile: ...


def files_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 in hex of a model with these file digests: over the lines of sha256sum, sorted by name."""
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def missing_file(folder: ModelFolder) -> str | None:
    """Returns a missing file without which a folder is no converted model; None: none is missing."""
    return next((name for name in ("config.json", WEIGHTS) if not (folder / name).is_file()), None)


def encoder_settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns what a converted encoder's configuration says of it (quant/families/encoders.py); None: it is none."""
    found = config.get(ENCODER)
    return found if isinstance(found, Mapping) else None


def is_draft_head(config: Mapping[str, Any]) -> bool:
    """Whether a converted folder's configuration is that of an EAGLE-3 head, which drafts for a model and is none."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and DRAFT_HEAD in architectures


def read_json(path: ModelFile, *, optional: bool = False) -> dict[str, Any]:
    """Reads the JSON object in a file; empty if it is optional and missing. Raises ChatModelError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ChatModelError(f"{path}: no such file; is this a converted model?") from error
    except (OSError, ValueError) as error:
        raise ChatModelError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ChatModelError(f"{path}: not a JSON object")
    return value


def read_template(path: ModelFile) -> str:
    """Reads a chat template from its own file. Raises ChatModelError naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ChatModelError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ChatModelError(f"{path}: {error.strerror}") from error


def find_template(folder: ModelFolder, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Returns the chat template, None without one. Raises ChatModelError naming the file.

    `tokenizer_config.json` has one, or several by name; newer checkpoints have a file of its own.
    """
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    if isinstance(template, str):
        return template
    path = folder / "chat_template.jinja"
    return read_template(path) if path.is_file() else None


def token_text(token: Any) -> str | None:
    """The text of a special token of `tokenizer_config.json`, which is a string or an object; None if neither."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def end_token_ids(
    tokenizer: Mapping[str, Any],
    config: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
) -> frozenset[int]:
    """The tokens that end an answer: those of both configurations, and the tokenizer's. Raises ChatModelError."""
    name = token_text(tokenizer_config.get("eos_token"))
    named = [int(token["id"]) for token in tokenizer.get("added_tokens") or [] if token["content"] == name]
    ends: list[int] = named
    for name, file in (("generation_config.json", generation_config), ("config.json", config)):
        wanted = file.get("eos_token_id")
        for token in wanted if isinstance(wanted, list) else [wanted]:
            if token is None:
                continue
            if type(token) is not int or not 0 <= token < config["vocab_size"]:
                raise ChatModelError(
                    f"{name}: eos_token_id: {token!r:.40} is no token of the vocabulary of {config['vocab_size']}"
                )
            ends.append(token)
    return frozenset(ends)


def read_end_token_ids(folder: ModelFolder) -> frozenset[int]:
    """Returns `end_token_ids` of a converted model. Raises ChatModelError naming the file."""
    return end_token_ids(
        read_json(folder / "tokenizer.json"),
        read_json(folder / "config.json"),
        read_json(folder / "tokenizer_config.json", optional=True),
        read_json(folder / "generation_config.json", optional=True),
    )


def context_tokens(folder: ModelFolder, wanted: int | None) -> int:
    """Returns the longest context in tokens: `wanted`, but at most the trained length, which is the default.

    Raises ChatModelError naming the file.
    """
    trained = int(read_json(folder / "config.json")["max_position_embeddings"])
    return min(wanted or trained, trained)
