"""Runs the parsing and tokenization of requests: short ones at once, long ones in threads, so that streams continue.

Tokenizing megabytes takes seconds of a core. Several at once would take cores from the workers and delay all other
requests, so huge ones run one after another. A low-priority thread would not help: it holds the GIL while others
compute. It knows no request.
"""

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

LONG_BODY_BYTES: Final = 16 << 10
HUGE_BODY_BYTES: Final = 256 << 10

Prepared = TypeVar("Prepared")


class Preparation:
    """The threads of one ingress."""

    def __init__(self) -> None:
        """Starts no thread yet."""
        # Two: the tokenizer releases the GIL, but most cores belong to the workers.
        self._threads = ThreadPoolExecutor(2, "tokenize")
        self._last = ThreadPoolExecutor(1, "tokenize-huge")

    async def run(self, size_bytes: int, work: Callable[[], Prepared]) -> Prepared:
        """Returns or raises what `work` does. size_bytes: the size of the body, which decides where it runs."""
        if size_bytes < LONG_BODY_BYTES:
            return work()
        loop = asyncio.get_running_loop()
        if size_bytes < HUGE_BODY_BYTES:
            return await loop.run_in_executor(self._threads, work)
        try:
            return await loop.run_in_executor(self._last, work)
        finally:
            self._last.submit(_give_memory_back)


def _give_memory_back() -> None:
    """Returns freed memory to the system: tokenization takes some hundred bytes a token, and glibc keeps them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # other C libraries do not have it
        trim(0)
