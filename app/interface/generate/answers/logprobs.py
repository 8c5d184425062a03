"""Converts the engine's scores to OpenAI's `logprobs`: entries of `content` in chat, parallel lists in completions.

The probabilities are the model's own: at temperature 1, before penalties, bias, top-p and any grammar. It knows tokens'
names and nothing of requests.
"""

import math
from collections.abc import Sequence
from typing import Any

from app.interface.text.detokenizer import TokenBytes
from app.messages.outputs import TokenScores

LOWEST = -9999.0
"""Replaces minus infinity, which JSON does not have."""


def chat_entries(tokens: TokenBytes, token_ids: Sequence[int], scores: TokenScores) -> list[dict[str, Any]]:
    """Returns one entry per token, with its `top_logprobs`."""
    return [
        _chat_token(tokens, token, logprob)
        | {"top_logprobs": [_chat_token(tokens, *pair) for pair in zip(top_ids, top_logprobs, strict=True)]}
        for token, logprob, top_ids, top_logprobs in zip(
            token_ids,
            scores.logprobs.tolist(),
            scores.top_token_ids.tolist(),
            scores.top_logprobs.tolist(),
            strict=True,
        )
    ]


def _chat_token(tokens: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    spelled = tokens.spelled(token)
    return {"token": spelled.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(spelled)}


class CompletionLogprobs:
    """The lists of one completion's `logprobs`, collected as tokens arrive."""

    def __init__(self, tokens: TokenBytes, top: int) -> None:
        self._tokens = tokens
        self._top = top
        self._offset = 0  # characters of the text so far; a token that completes no character has the next one's offset
        self._pending = b""
        self._clear()

    def _clear(self) -> None:
        self._lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def add_unscored(self, token: int) -> None:
        """Adds a prompt's first token, which has no score."""
        self._add(token, None, None)

    def add(self, token_ids: Sequence[int], scores: TokenScores) -> None:
        for i, token in enumerate(token_ids):
            logprob = _finite(float(scores.logprobs[i]))
            top: dict[str, float] = {}
            pairs = zip(scores.top_token_ids[i].tolist(), scores.top_logprobs[i].tolist(), strict=True)
            for other, its_logprob in pairs if self._top else ():
                top.setdefault(self._name(other), _finite(its_logprob))
            if self._top:
                top.setdefault(self._name(token), logprob)  # OpenAI includes the chosen token too
            self._add(token, logprob, top if self._top else None)

    def pop(self) -> dict[str, Any]:
        """Returns the lists since the last call."""
        lists = self._lists
        self._clear()
        return lists

    def _add(self, token: int, logprob: float | None, top: dict[str, float] | None) -> None:
        self._lists["tokens"].append(self._name(token))
        self._lists["token_logprobs"].append(logprob)
        self._lists["top_logprobs"].append(top)
        self._lists["text_offset"].append(self._offset)
        self._pending += self._tokens.join((token,))
        try:
            text, self._pending = self._pending.decode(), b""
        except UnicodeDecodeError:
            return
        self._offset += len(text)

    def _name(self, token: int) -> str:
        """Returns a unique name: the token's text, or its bytes escaped as OpenAI does if they are no character."""
        spelled = self._tokens.spelled(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST) if not math.isnan(logprob) else LOWEST
