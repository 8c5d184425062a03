"""Where requests are parsed and tokenized: short ones at once, long ones in threads, so that other streams go on.

A text of megabytes takes the tokenizer seconds of a core. Several of them would keep the cores from the workers, and
all other requests waiting. So they are prepared one after another. At a lower priority a thread would keep Python's
lock for as long as others compute. It knows no request.
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
    """Threads for one ingress."""

    def __init__(self) -> None:
        """Starts no thread yet."""
        # Two: the tokenizer releases Python's lock, but most cores belong to the workers.
        self._threads = ThreadPoolExecutor(2, "tokenize")
        self._last = ThreadPoolExecutor(1, "tokenize-huge")

    async def run(self, size_bytes: int, work: Callable[[], Prepared]) -> Prepared:
        """What `work` returns or raises. size_bytes: of the request's body, which decides where it runs."""
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
    """A token takes some hundred bytes while a text is tokenized, and glibc keeps what was freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # other C libraries do not have it
        trim(0)
