"""An encoder as the interface sees it: tokenizer, prompts for queries and documents, the longest text.

Text never becomes a control token: the tokenizer knows those under secret names. It knows nothing of weights, HTTP or
Ray.
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, Self

import numpy as np
from tokenizers import Tokenizer

from app.control_tokens import Aliases, control_tokens
from app.interface.request import errors
from app.messages.requests import Texts
from app.model_folder import ChatModelError, ModelFolder, encoder_settings, read_json

Kind = Literal["query", "document"]
_PROMPTS: Final[Mapping[Kind, tuple[str, ...]]] = {"query": ("query",), "document": ("document", "passage")}
"""What sentence-transformers' models call their prompts."""
_BYTES_OF_A_TOKEN: Final = 64
"""Of a text that is longer than this for each token that a model takes, the end is not tokenized."""

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The special tokens around a text, or around a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    first: int
    """How many tokens belong to a pair's first text that are not its own: those before, and some between."""

    @property
    def size(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A decoder's prompt that asks whether two texts go together (quant/sources/decoder_rerankers.py)."""

    before: Tokens
    first: str
    """Stands before the first text, and `second` before the second."""
    second: str
    after: Tokens

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


class EncoderModel:
    """Immutable after loading and thread-safe."""

    def __init__(
        self,
        *,
        tokenizer: Mapping[str, Any],
        config: Mapping[str, Any],
        max_context_tokens: int | None = None,
        identity: str = "",
    ) -> None:
        """Takes the contents of a model folder's JSON files. Raises ValueError, KeyError."""
        found = encoder_settings(config)
        if found is None:
            raise ValueError("config.json: this model is no encoder")
        self.identity = identity
        """The identity of the model's files (`ModelCard.identity`)."""
        self.dimensions: int = found["dimensions"]
        """Numbers of a vector; 1 of a reranker."""
        self.scores: bool = found["task"] == "score"
        """Whether it is a reranker."""
        self.normalized: bool = found["normalized"]
        """Whether its vectors have length 1."""
        self._shorter = [int(each) for each in found.get("shorter", ())]
        self._shortest: int | None = found.get("shortest")
        trained = int(found["max_tokens"])
        self.max_tokens = self._own_max_tokens = min(max_context_tokens or trained, trained)
        """The longest text, with its special tokens."""
        self.vocab_size = int(config["vocab_size"])
        self._lower_case: bool = found.get("lower_case", False)
        self._prompts: Mapping[str, str] = found.get("prompts", {})
        self._default_prompt: str | None = found.get("default_prompt")
        frame = found.get("frame")
        self._judged = None if frame is None else _Judged(**frame)
        self._aliases = Aliases(control_tokens(tokenizer.get("added_tokens") or [], None))
        self._tokenizer = Tokenizer.from_str(json.dumps(self._aliases.in_tokenizer(tokenizer)))
        self._single, self._pair = self._frame(("a", None)), self._frame(("a", "b"))
        if self.max_tokens <= (self._pair.size if self._judged is None else self._judged.size) + 1:
            raise ValueError(f"config.json: texts of {self.max_tokens} tokens are too short for this tokenizer")

    @classmethod
    def load(cls, folder: ModelFolder, *, max_context_tokens: int | None = None, identity: str = "") -> Self:
        """Opens a converted encoder. Raises ChatModelError naming the file."""
        try:
            return cls(
                tokenizer=read_json(folder / "tokenizer.json"),
                config=read_json(folder / "config.json"),
                max_context_tokens=max_context_tokens,
                identity=identity,
            )
        except ChatModelError:
            raise
        except Exception as error:  # a file's entry of another type; the tokenizers library raises bare Exception
            raise ChatModelError(f"{folder}: can't be read: {type(error).__name__}: {error}") from error

    @property
    def context_tokens(self) -> int:
        """The same as max_tokens, by a chat model's name."""
        return self.max_tokens

    @property
    def special_tokens(self) -> int:
        """How many are added to one text."""
        return self._single.size

    def within(self, tokens: int | None) -> Self:
        """Returns a copy whose longest text is not longer than `tokens`; itself if it is so."""
        most = min(tokens or self._own_max_tokens, self._own_max_tokens)
        if most == self.max_tokens:
            return self
        model = copy(self)
        model.max_tokens = most
        return model

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises ApiError (400) unless vectors may be cut to this many numbers."""
        if dimensions in (None, self.dimensions) or dimensions in self._shorter:
            return
        assert dimensions is not None
        if self._shortest is not None and self._shortest <= dimensions < self.dimensions:
            return
        if self._shortest is not None:
            known = f"{self._shortest} to {self.dimensions}"
        else:
            known = ", ".join(map(str, sorted({*self._shorter, self.dimensions})))
        message = f"'dimensions' is {dimensions}; this model's vectors can have {known}."
        raise errors.invalid(message, "dimensions", "unsupported_parameter")

    def count(self, texts: Sequence[str]) -> list[int]:
        """Returns the tokens of each text, without special tokens and not cut."""
        return [len(self._ids(text)) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Returns where each token's characters begin and end in the text."""
        shown = text.lower() if self._lower_case else text
        (encoding,) = self._tokenizer.encode_batch([shown], add_special_tokens=False)
        return list(encoding.offsets)

    def prompt(self, kind: Kind | None) -> str:
        """Returns what stands before a text of this kind."""
        names = (self._default_prompt,) if kind is None else _PROMPTS[kind]
        return next((self._prompts[name] for name in names if name is not None and name in self._prompts), "")

    def tokens(self, text: str, kind: Kind | None = None) -> list[int]:
        """Returns a text's tokens with its prompt and special tokens; its end is cut if it is too long."""
        frame = self._single
        ids = self._ids(self.prompt(kind) + text, self.max_tokens)
        return [*frame.before, *ids[: self.max_tokens - frame.size], *frame.after]

    def framed(self, token_ids: Tokens) -> list[int]:
        """The same of a text's own tokens."""
        frame = self._single
        return [*frame.before, *token_ids[: self.max_tokens - frame.size], *frame.after]

    def pairs(self, query: str, texts: Sequence[str]) -> list[tuple[list[int], int]]:
        """Returns the tokens of each pair, and how many of them come before its second text.

        Of a pair that is too long, the longer text's end is cut; in a decoder's prompt, the pair's.
        """
        if self._judged is not None:
            return [(self._judgement(self._judged, query, text), 0) for text in texts]
        frame = self._pair
        room = self.max_tokens - frame.size
        first = self._ids(query, self.max_tokens)
        result = []
        for text in texts:
            second = self._ids(text, self.max_tokens)
            for_first = max(room - len(second), room // 2) if len(first) + len(second) > room else len(first)
            own = first[:for_first]
            ids = [*frame.before, *own, *frame.between, *second[: room - len(own)], *frame.after]
            result.append((ids, len(own) + frame.first))
        return result

    def _judgement(self, judged: "_Judged", query: str, text: str) -> list[int]:
        """Returns a pair in a reranker's prompt; its end is cut if it is too long."""
        room = self.max_tokens - judged.size
        ids = self._ids(judged.first + query + judged.second + text, self.max_tokens)
        return [*judged.before, *ids[:room], *judged.after]

    def _ids(self, text: str, most: int | None = None) -> list[int]:
        """Returns a text's tokens, of a far too long one only the first."""
        if most is not None:
            text = text[: most * _BYTES_OF_A_TOKEN]
        # One by one: a batch would take all cores, also the workers'. `encode` would hold the GIL all the time.
        shown = text.lower() if self._lower_case else text
        (encoding,) = self._tokenizer.encode_batch_fast([shown], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _frame(self, pair: tuple[str, str | None]) -> _Frame:
        """Finds the special tokens that the tokenizer puts around a text or a pair. Raises ValueError."""
        first, second = pair
        encoding = self._tokenizer.encode(first) if second is None else self._tokenizer.encode(first, second)
        of_text, ids = encoding.sequence_ids, encoding.ids
        own = [i for i, number in enumerate(of_text) if number == 0]
        others = [i for i, number in enumerate(of_text) if number == 1]
        if not own or (second is not None and not others):
            raise ValueError("tokenizer.json: its post-processor leaves a text out")
        last = others or own
        between = tuple(ids[own[-1] + 1 : others[0]]) if others else ()
        types = encoding.type_ids
        typed = next((i for i, kind in enumerate(types) if kind), others[0] if others else len(ids))
        return _Frame(tuple(ids[: own[0]]), between, tuple(ids[last[-1] + 1 :]), typed - len(own))


def packed(texts: Sequence[Tokens], second: Sequence[int] | None = None) -> Texts:
    """Returns texts as a worker takes them. second: after how many tokens each one's second text begins."""
    lengths = np.fromiter((len(each) for each in texts), np.int32, len(texts))
    token_ids = np.empty(int(lengths.sum()), np.int32)
    for each, end in zip(texts, accumulate(lengths.tolist()), strict=True):
        token_ids[end - len(each) : end] = each
    return Texts(token_ids, lengths, lengths if second is None else np.array(second, np.int32))
