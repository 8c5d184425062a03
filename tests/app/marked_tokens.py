"""The tiny tokenizer with further tokens, as models have them for the marks of thoughts and calls."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.interface.text.chat_model import ChatModel
from app.workers.constraints import Constraints
from tests.app.interface.functions.constrained import lets_through
from tests.app.tiny_model import EOS_ID, reference_tokenizer, tokenizer_json

BASE_TOKENS = len(tokenizer_json()["model"]["vocab"])


@dataclass(frozen=True)
class MarkedTokens:
    """A vocabulary in which these names are tokens."""

    names: tuple[str, ...]
    special: bool | None = True
    """None: the names are plain text, and no tokens."""

    @cached_property
    def added(self) -> dict[int, str]:
        """The further tokens by id."""
        return {} if self.special is None else dict(enumerate(self.names, start=BASE_TOKENS))

    @property
    def vocab_size(self) -> int:
        return BASE_TOKENS + len(self.names)

    def tokenizer(self) -> dict[str, Any]:
        """Its tokenizer.json."""
        tokenizer = tokenizer_json()
        entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": self.special}
        tokenizer["added_tokens"] += [{"id": token, "content": name, **entry} for token, name in self.added.items()]
        return tokenizer

    def config(self, ends: Sequence[str] = ()) -> dict[str, Any]:
        """Its config.json. ends: tokens that end an answer, besides the tiny model's."""
        ids = [EOS_ID, *(token for token, name in self.added.items() if name in ends)]
        return {
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 4096,
            "hidden_size": 8,
            "eos_token_id": ids,
        }

    def encode(self, text: str) -> list[int]:
        """The text as a model writes it: with a token for each name in it, if the names are tokens."""
        if self.special is None:
            return list(reference_tokenizer().encode(text).ids)
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self.names))})", text):
            ids += [BASE_TOKENS + self.names.index(part)] if part in self.names else self._plain(part)
        return ids

    def model(self, template: str, ends: Sequence[str] = ()) -> ChatModel:
        """A chat model without weights."""
        return _loaded(self, template, tuple(ends))

    @contextmanager
    def constraints(self, ends: Sequence[str] = ()) -> Iterator[Constraints]:
        """What compiles grammars for this vocabulary."""
        with TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_text(dumps(self.tokenizer()))
            (Path(folder) / "config.json").write_text(dumps(self.config(ends)))
            made = Constraints(Path(folder), self.vocab_size)
            try:
                yield made
            finally:
                made.close()

    def lets_through(self, constraints: Constraints, grammar: str, text: str, end: int = EOS_ID) -> bool:
        """Whether an output that follows the grammar may be this text, and end there."""
        return lets_through(constraints, grammar, [*self.encode(text), end], self.vocab_size)

    def _plain(self, text: str) -> list[int]:
        return list(reference_tokenizer().encode(text).ids)


@lru_cache(maxsize=8)
def _loaded(marked: MarkedTokens, template: str, ends: tuple[str, ...]) -> ChatModel:
    """The same object for the same values: loading one starts a process."""
    names = {"eos_token": "<|im_end|>"}
    return ChatModel(
        tokenizer=marked.tokenizer(), config=marked.config(ends), tokenizer_config=names, template=template
    )
