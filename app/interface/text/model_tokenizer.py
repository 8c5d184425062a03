"""A model's tokenizer. It knows control tokens under secret names only, so that no user's text becomes one.

Knows neither templates nor the length of a context.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from app.control_tokens import Aliases
from app.interface.text.detokenizer import TokenBytes
from app.model_folder import token_text

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ModelTokenizer:
    """Immutable after loading and thread-safe."""

    def __init__(self, tokenizer: Mapping[str, Any], config: Mapping[str, Any], control: Iterable[str]) -> None:
        """Takes the contents of tokenizer.json and tokenizer_config.json. Raises ValueError naming what is wrong.

        control: the control tokens.
        """
        self.bytes = TokenBytes.from_json(tokenizer)
        self.special = {name: text for name in _SPECIAL_NAMES if (text := token_text(config.get(name)))}
        """The texts of special tokens by their names, such as "bos_token"."""
        self.added: Mapping[int, str] = {token["id"]: token["content"] for token in tokenizer.get("added_tokens") or []}
        """Added tokens by id, special or not: a text contains them only as a whole, or not at all."""
        self.aliases = Aliases(control)
        self._tokenizer = Tokenizer.from_str(json.dumps(self.aliases.in_tokenizer(tokenizer)))
        self._prefix = self._raw_prefix(config)

    def encode(self, text: str) -> Encoding:
        """Tokenizes a text in which control tokens have their secret names."""
        # `encode` would hold the GIL all the time, seconds for a megabyte (tokenizers 0.23).
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding

    def count(self, text: str) -> int:
        """Returns the number of tokens of a text."""
        # One by one: a batch would take all cores, also the workers'.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return len(encoding)

    def least_tokens(self, text: str) -> int:
        """Returns how many tokens a text has at least, without tokenizing it; control tokens by whatever names."""
        return len(text.encode()) // max(self.bytes.longest, self.aliases.longest_bytes)

    def with_prefix(self, token_ids: list[int]) -> list[int]:
        """Puts BOS before the tokens of a raw prompt, if the model uses BOS and it is not there."""
        prefix = self._prefix
        return token_ids if token_ids[: len(prefix)] == prefix else [*prefix, *token_ids]

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the tokens' text, special tokens by name."""
        text = b"".join(map(self.bytes.spelled, token_ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.bytes.has_prefix_space else text

    def names(self, token_ids: Iterable[int]) -> list[str]:
        """Returns the tokens as the vocabulary writes them; an unknown one is empty."""
        names = (self._tokenizer.id_to_token(token) or "" for token in token_ids)
        return [self.aliases.real_name(name) for name in names]

    def _raw_prefix(self, config: Mapping[str, Any]) -> list[int]:
        """Returns the prefix of raw prompts: BOS, if the tokenizer's configuration or post-processor says so."""
        if config.get("add_bos_token") is False:
            return []
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(1, len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return list(full[:start])
        if config.get("add_bos_token") is True and "bos_token" in self.special:
            bos = self._tokenizer.token_to_id(self.aliases.name(self.special["bos_token"]))
            return [] if bos is None else [bos]
        return []
