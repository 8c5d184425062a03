"""Cuts a calibration text into windows of token ids.

Without a user's file the text is the one that ships here: `written.txt`, written for this project, and `generated.txt`,
which the embedded model wrote from our openings (tools/write_calibration_text.py). Documents are separated by a form
feed; one that begins with a line `@user` is a chat, which is put into the model's own template where it has one. Does
not know models.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2.sandbox
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from quant.errors import SourceError
from quant.files.json_file import read_json_object
from quant.files.plain_file import MOST_TEXT_BYTES, read_plain_text

I32 = NDArray[np.int32]

_FOLDER: Final = Path(__file__).parent
SHIPPED: Final = (_FOLDER / "written.txt", _FOLDER / "generated.txt")
_DOCUMENT_END: Final = "\f"
_ROLES: Final = ("@user", "@assistant")
_SEED: Final = 0
_HELD_BACK_EVERY: Final = 8


def calibration_windows(tokenizer_folder: Path, text: Path | None, *, windows: int, tokens: int) -> I32:
    """Returns ids [at most `windows`, tokens]: the concatenated documents, cut, and drawn with a fixed seed.

    tokenizer_folder: has tokenizer.json and possibly tokenizer_config.json. text: a UTF-8 file; None: the included
    text.

    Raises SourceError: the file can't be read, or is too short for one window.
    """
    where = str(text) if text else "the calibration text"
    ids = _ids(tokenizer_folder, text)
    whole = len(ids) // tokens
    if not whole:
        raise SourceError(f"{where}: is {len(ids)} tokens long; calibration needs at least {tokens}")
    cut = np.array(ids[: whole * tokens], np.int32).reshape(whole, tokens)
    chosen = np.random.Generator(np.random.PCG64(_SEED)).permutation(whole)[:windows]
    return cut[chosen]


def token_counts(tokenizer_folder: Path, text: Path | None, vocabulary: int) -> NDArray[np.int64]:
    """Returns [vocabulary]: how often the text, as in `calibration_windows`, has each token. Raises SourceError."""
    ids = [each for each in _ids(tokenizer_folder, text) if each < vocabulary]
    return np.bincount(np.array(ids, np.int64), minlength=vocabulary).astype(np.int64)


def _ids(tokenizer_folder: Path, text: Path | None) -> list[int]:
    """The token ids of all documents of a text, or of the included one."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    settings = read_json_object(tokenizer_folder / "tokenizer_config.json")
    ids: list[int] = []
    separator = _separator(tokenizer, settings)
    for document in _documents(SHIPPED if text is None else (text,)):
        ids += separator + tokenizer.encode(_plain(document, settings), add_special_tokens=False).ids
    return ids


def divided_text() -> tuple[str, str]:
    """The included text in two: most of it to calibrate with, and documents that are held back to compare by."""
    documents = _documents(SHIPPED)
    held_back = documents[_HELD_BACK_EVERY - 1 :: _HELD_BACK_EVERY]
    others = [one for number, one in enumerate(documents, 1) if number % _HELD_BACK_EVERY]
    return _DOCUMENT_END.join(others), _DOCUMENT_END.join(held_back)


def _documents(paths: tuple[Path, ...]) -> list[str]:
    texts = [read_plain_text(path, MOST_TEXT_BYTES) for path in paths]
    parts = [part.strip("\n") for text in texts for part in text.split(_DOCUMENT_END)]
    return [part for part in parts if part.strip()]


def _separator(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> list[int]:
    """The token ids that each document begins with: the model's BOS token, if it adds one."""
    token = settings.get("bos_token")
    name = token.get("content") if isinstance(token, dict) else token
    number = tokenizer.token_to_id(name) if isinstance(name, str) and settings.get("add_bos_token") else None
    return [] if number is None else [number]


def _plain(document: str, settings: Mapping[str, Any]) -> str:
    """A document's text; a chat is rendered by the model's template."""
    if not document.startswith(_ROLES[0] + "\n"):
        return document
    messages: list[dict[str, str]] = []
    for line in document.split("\n"):
        if line in _ROLES:
            messages.append({"role": line[1:], "content": ""})
        else:
            messages[-1]["content"] += line + "\n"
    messages = [{**message, "content": message["content"].strip()} for message in messages]
    template = settings.get("chat_template")
    if isinstance(template, str):
        try:
            return _rendered(template, messages, settings)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError):
            pass  # the template doesn't fit this chat, so the plain text is used
    return "\n\n".join(message["content"] for message in messages)


def _rendered(template: str, messages: list[dict[str, str]], settings: Mapping[str, Any]) -> str:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    tokens = {}
    for name in ("bos_token", "eos_token"):
        token = settings.get(name) or ""
        tokens[name] = token.get("content", "") if isinstance(token, dict) else token
    return environment.from_string(template).render(messages=messages, add_generation_prompt=False, **tokens)
