"""Names of prompt pages: which pages of keys and values two requests may share.

A page's keys and values follow from its tokens and all before them, so its name is a hash of both: a chain of digests,
one per whole page. The chain begins with a salt that only this engine and this tenant's requests lead to; so no one
finds another tenant's pages, whatever they ask for, and a name that leaks tells nothing about a text.

Knows neither pages nor where they are kept (kv_blocks.py), nor when they are looked up (scheduler.py).
"""

import hashlib
import hmac
from array import array


def tenant_salt(secret: bytes, tenant: bytes) -> bytes:
    """Where a tenant's chains begin. `secret`: the engine's cache secret, which is handed to it."""
    return hmac.digest(secret, tenant, "sha256")


class PageChain:
    """One sequence's digests, made when asked for; `tokens` is the engine's list and grows with the output."""

    __slots__ = ("_digests", "_page_tokens", "_salt", "_tokens")

    def __init__(self, tokens: list[int], page_tokens: int, salt: bytes) -> None:
        self._tokens = tokens
        self._page_tokens = page_tokens
        self._salt = salt
        self._digests: list[bytes] = []

    def fork(self, tokens: list[int]) -> "PageChain":
        """The chain of a list that begins like this one's, or is a beginning of it."""
        chain = PageChain(tokens, self._page_tokens, self._salt)
        chain._digests = self._digests[: len(tokens) // self._page_tokens]
        return chain

    def digest(self, index: int) -> bytes:
        """The name of page `index`, all of whose tokens must be known."""
        while len(self._digests) <= index:
            begin = len(self._digests) * self._page_tokens
            tokens = array("i", self._tokens[begin : begin + self._page_tokens])
            assert len(tokens) == self._page_tokens, f"page {index} is not full yet"
            parent = self._digests[-1] if self._digests else self._salt
            self._digests.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return self._digests[index]
