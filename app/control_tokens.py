"""Gives control tokens secret names, so that neither users' prompts nor schemas in grammars can contain them.

It knows `tokenizer.json`, and neither templates nor grammars.
"""

import copy
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MARKER = re.compile(r"[^\w\s].*\w.*[^\w\s]")


def control_tokens(added: Iterable[Mapping[str, Any]], template: str | None) -> list[str]:
    """Returns those of `tokenizer.json`'s added tokens that texts must not become.

    These are the special ones, and tokens of the template that are spelled like `<think>` or `[INST]`. White space and
    words are text, even if a template has them: Gemma has a token for two newlines.
    """
    return [
        token["content"]
        for token in added
        if token["special"] or (template and token["content"] in template and _MARKER.fullmatch(token["content"]))
    ]


class Aliases:
    """Secret names of control tokens: the ids stay the same, and no user can guess the names."""

    def __init__(self, tokens: Iterable[str]) -> None:
        secret = secrets.token_hex(8)
        self._names = {token: f"\ue000{secret}{token}\ue001" for token in tokens}
        self._tokens = {name: token for token, name in self._names.items()}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.longest_bytes = max((len(name.encode()) for name in self._names.values()), default=1)
        """Bytes of the longest secret name."""

    def name(self, token: str) -> str:
        """The secret name of a control token; other tokens keep their name."""
        return self._names.get(token, token)

    def real_name(self, name: str) -> str:
        """The public name of a control token; other tokens keep their name."""
        return self._tokens.get(name, name)

    def in_text(self, text: str) -> str:
        """Replaces control tokens in the text by their secret names."""
        return self._pattern.sub(lambda match: self._names[match[0]], text)

    def in_tokenizer(self, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
        """Renames the control tokens in `tokenizer.json`, and drops merges that could make one."""
        model = dict(tokenizer["model"])
        if isinstance(model["vocab"], Mapping):
            model["vocab"] = {self.name(token): i for token, i in model["vocab"].items()}
        else:
            model["vocab"] = [[self.name(token), score] for token, score in model["vocab"]]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self.name(model["unk_token"])
        if "merges" in model:
            model["merges"] = [merge for merge in model["merges"] if self._is_harmless(merge)]
        added = copy.deepcopy(list(tokenizer.get("added_tokens") or []))
        for token in added:
            if token["content"] in self._names:
                token["content"], token["normalized"] = self.name(token["content"]), False
        return {**tokenizer, "model": model, "added_tokens": added, "truncation": None, "padding": None}

    def _is_harmless(self, merge: str | Sequence[str]) -> bool:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        return not self._names.keys() & {left, right, left + right}
