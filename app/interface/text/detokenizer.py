"""Converts token ids to text incrementally, and finds stop strings in it.

Every token stands for fixed bytes, which an incremental UTF-8 decoder turns into text. So each token costs the same
however long the output is, and no character is shown before it is complete. It knows `tokenizer.json`, not the model.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.interface.thinking.possible_start import possible_start

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # SentencePiece's space


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's tokens do not stand for fixed bytes, or its kind is unknown."""


class TokenBytes:
    """The bytes of each token of a vocabulary; special tokens have none."""

    def __init__(
        self, table: Sequence[bytes], *, has_prefix_space: bool, special: Mapping[int, str] | None = None
    ) -> None:
        self._table = table
        self.special: Mapping[int, str] = special or {}
        """The names of the special tokens."""
        self.has_prefix_space = has_prefix_space
        """Whether a first token begins with a space that is not part of the text (SentencePiece's dummy prefix)."""
        self.longest = max(map(len, table), default=1)
        """The length of the longest token in bytes."""

    def join(self, token_ids: Iterable[int]) -> bytes:
        """Returns the tokens' bytes. A token outside the vocabulary (a model may have spare rows) has none."""
        table, size = self._table, len(self._table)
        return b"".join(table[token] for token in token_ids if token < size)

    def spelled(self, token: int) -> bytes:
        """Returns a token as shown in scores: its bytes, or a special token's name."""
        if token in self.special:
            return self.special[token].encode()
        return self._table[token] if token < len(self._table) else b""

    def where(self, accepts: Callable[[bytes], bool]) -> dict[int, bytes]:
        """Returns the accepted tokens with their bytes."""
        return {token: text for token, text in enumerate(self._table) if accepts(text)}

    def showing(self, names: Iterable[str], sign: str = "") -> "TokenBytes":
        """Returns a copy in which these special tokens stand for their names, prefixed with `sign`."""
        shown = {token: (sign + name).encode() for token, name in self.special.items() if name in set(names)}
        if not shown:
            return self
        table = [shown.get(token, text) for token, text in enumerate(self._table)]
        return TokenBytes(table, has_prefix_space=self.has_prefix_space, special=self.special)

    @classmethod
    def from_json(cls, tokenizer: Mapping[str, Any]) -> "TokenBytes":
        """Builds the table from `tokenizer.json`. Raises UnsupportedTokenizerError."""
        model, decoders = tokenizer["model"], _decoder_steps(tokenizer.get("decoder"))
        if model.get("type", "BPE") not in ("BPE", "Unigram"):
            raise UnsupportedTokenizerError(f"tokenizer.json: model type {model.get('type')!r} is not supported")
        vocab = model["vocab"]
        tokens = dict(vocab) if isinstance(vocab, Mapping) else {entry[0]: i for i, entry in enumerate(vocab)}
        added = {token["id"]: token for token in tokenizer.get("added_tokens") or []}
        table = [b""] * (max([*tokens.values(), *added], default=-1) + 1)
        to_bytes = _byte_level if "ByteLevel" in decoders else _sentencepiece
        if to_bytes is _sentencepiece and not decoders.keys() & {"Metaspace", "Replace"}:
            raise UnsupportedTokenizerError(f"tokenizer.json: decoder {sorted(decoders)} is not supported")
        # SentencePiece's added tokens are decoded like others: Gemma's have runs of its sign for a space. Byte-level
        # ones are matched in texts literally, not in the byte alphabet.
        added_to_bytes = _sentencepiece if to_bytes is _sentencepiece else str.encode
        for text, token_id in tokens.items():
            if token_id not in added:
                table[token_id] = to_bytes(text)
        for token_id, token in added.items():
            table[token_id] = b"" if token["special"] else added_to_bytes(token["content"])
        special = {token_id: token["content"] for token_id, token in added.items() if token["special"]}
        return cls(table, has_prefix_space=_strips_a_space(decoders), special=special)


class Detokenizer:
    """Converts one output's tokens to text, in complete characters."""

    __slots__ = ("_decoder", "_strip", "_tokens")

    def __init__(self, tokens: TokenBytes, *, starts_text: bool) -> None:
        """starts_text: the output is a text of its own; otherwise it continues its prompt, and a first space counts."""
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = starts_text and tokens.has_prefix_space

    def feed(self, token_ids: Iterable[int]) -> str:
        """Returns the characters that these tokens complete."""
        text = self._decoder.decode(self._tokens.join(token_ids))
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """Returns a replacement character if the output ends within a character, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Finds the first stop string in a text that arrives in pieces.

    Text that could begin a stop string is held back until that is decided. The stop string that is complete first wins,
    so the result does not depend on how the text is split.
    """

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Returns the text that is safe to show, and the stop string that was found right after it, if any."""
        if not self._stops:
            return text, None
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            _, start, stop = min(found)
            return text[:start], stop
        safe = min(possible_start(text, stop) for stop in self._stops)
        self._held = text[safe:]
        return text[:safe], None

    def finish(self) -> str:
        """Returns what was held back."""
        held, self._held = self._held, ""
        return held


def _decoder_steps(decoder: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Returns the decoder's steps by type."""
    if decoder is None:
        return {}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {step["type"]: step for step in steps}


def _strips_a_space(decoders: Mapping[str, Mapping[str, Any]]) -> bool:
    if "Strip" in decoders:
        return decoders["Strip"].get("content") == " " and decoders["Strip"].get("start", 0) > 0
    metaspace = decoders.get("Metaspace", {"prepend_scheme": "never"})
    return metaspace.get("prepend_scheme", "always") != "never" and metaspace.get("add_prefix_space", True) is True


def _byte_level(text: str) -> bytes:
    """Returns a byte-level token's bytes; one outside the byte alphabet stands for itself."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in text)
    except KeyError:
        return text.encode()


def _sentencepiece(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's alphabet: printable Latin-1 bytes are themselves, the others follow from character 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Mapping[str, int] = _byte_alphabet()
