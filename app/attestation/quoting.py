"""Makes one quote at a time.

A quote takes the processor tens of milliseconds: a few requests wait, and more are refused.
"""

import asyncio

from app.attestation.evidence import Evidence, EvidenceError, EvidenceSource

_MOST_WAITING = 16


class BusyError(RuntimeError):
    """The queue of waiting requests is full."""


class QuoteQueue:
    """Asks a source for one quote after the other; used on one event loop."""

    def __init__(self, source: EvidenceSource, timeout_s: float) -> None:
        """timeout_s: for one quote, without the time in the queue."""
        self._source = source
        self._timeout_s = timeout_s
        self._one = asyncio.Lock()
        self._waiting = 0

    async def quote(self, report_data: bytes) -> Evidence:
        """Makes evidence over 64 bytes. Raises BusyError at once, or EvidenceError."""
        if self._waiting >= _MOST_WAITING:
            raise BusyError
        self._waiting += 1
        try:
            async with self._one, asyncio.timeout(self._timeout_s):
                return await self._source.quote(report_data)
        except TimeoutError:
            raise EvidenceError(f"none within {self._timeout_s:g} s") from None
        finally:
            self._waiting -= 1
