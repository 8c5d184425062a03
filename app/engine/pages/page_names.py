"""Names of full KV pages: two requests may share a page if it has the same name for both.

A page's keys and values depend on its tokens and on all tokens before them, so its name is a hash of both: a chain of
digests, one per full page. The chain begins with a salt that depends on the engine's secret and on the tenant. So no
tenant can find another's pages, whatever it requests, and a leaked name reveals nothing about a text.

Knows neither the pages themselves (page_pool.py) nor when they are looked up (scheduling/scheduler.py).
"""

import hashlib
import hmac
from array import array
from typing import Final

CACHE_SECRET_BYTES: Final = 32
"""Minimum length of the secret."""


def tenant_salt(secret: bytes, tenant: bytes) -> bytes:
    """The salt that a tenant's chains begin with.

    `secret`: the engine's `cache_secret`, at least CACHE_SECRET_BYTES.
    """
    return hmac.digest(secret, tenant, "sha256")


def memory_salt(names_key: bytes, fingerprint: bytes) -> bytes:
    """The salt for a user with saved pages: the same on every engine that computes the same bits.

    names_key is the `MemoryGrant`'s, fingerprint the `PageStore`'s.
    """
    return hmac.digest(names_key, fingerprint, "sha256")


class PageChain:
    """The digests of one sequence's pages, computed on demand. `tokens` is the generation's growing list."""

    __slots__ = ("_digests", "_page_tokens", "_salt", "_tokens")

    def __init__(self, tokens: list[int], page_tokens: int, salt: bytes) -> None:
        self._tokens = tokens
        self._page_tokens = page_tokens
        self._salt = salt
        self._digests: list[bytes] = []

    def fork(self, tokens: list[int]) -> "PageChain":
        """Makes the chain of `tokens`; one of the two token lists must be a prefix of the other."""
        chain = PageChain(tokens, self._page_tokens, self._salt)
        chain._digests = self._digests[: len(tokens) // self._page_tokens]
        return chain

    def digest(self, index: int) -> bytes:
        """Returns the 32-byte name of page `index`. All tokens of the page must be known."""
        while len(self._digests) <= index:
            begin = len(self._digests) * self._page_tokens
            tokens = array("i", self._tokens[begin : begin + self._page_tokens])
            assert len(tokens) == self._page_tokens, f"page {index} is not full yet"
            parent = self._digests[-1] if self._digests else self._salt
            self._digests.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return self._digests[index]
