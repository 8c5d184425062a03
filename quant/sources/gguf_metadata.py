"""Typed look-ups in a GGUF's metadata: every error names the file and the key.

Does not know which keys there are, nor what they mean.
"""

from typing import Any

import numpy as np

from quant.errors import SourceError
from quant.sources.gguf_file import GgufFile


class Metadata:
    """Typed look-ups in a GGUF's metadata. Raises SourceError naming the key."""

    def __init__(self, gguf: GgufFile) -> None:
        self._path, self._values = gguf.path, gguf.metadata

    def integer(self, key: str, default: int | None = None) -> int:
        """A non-negative integer; required if there is no default."""
        value = self._values.get(key, default)
        if value is None:
            raise SourceError(f"{self._path}: lacks the metadata key {key!r}")
        if type(value) is not int or value < 0:
            raise SourceError(f"{self._path}: metadata key {key!r} is {_shown(value)}, not a non-negative integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required if there is no default. fp32 values become their shortest decimal."""
        value = self._values.get(key, default)
        if value is None:
            raise SourceError(f"{self._path}: lacks the metadata key {key!r}")
        if type(value) not in (int, float) or not np.isfinite(value):
            raise SourceError(f"{self._path}: metadata key {key!r} is {_shown(value)}, not a finite number")
        return float(str(np.float32(value)))

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required if there is no default."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            problem = "is missing" if value is None else f"is {_shown(value)}, not a string"
            raise SourceError(f"{self._path}: metadata key {key!r} {problem}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise SourceError(f"{self._path}: metadata key {key!r} is {_shown(value)}, not a boolean")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings, required."""
        value = self._values.get(key)
        if not isinstance(value, list):
            raise SourceError(f"{self._path}: metadata key {key!r} is missing or not a list of strings")
        return value

    def numbers(self, key: str, count: int) -> np.ndarray[Any, np.dtype[Any]] | None:
        """An array of `count` numbers, or None if the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != count:
            raise SourceError(f"{self._path}: metadata key {key!r} is not an array of {count} numbers")
        return value

    def integers(self, key: str, count: int, default: int | None = None) -> list[int]:
        """A non-negative integer for each of `count` layers: an array, or one for all. Required without a default."""
        if not isinstance(self._values.get(key), np.ndarray):
            return [self.integer(key, default)] * count
        values = self.numbers(key, count)
        if values is None or values.dtype.kind not in "iu" or (values < 0).any():
            raise SourceError(f"{self._path}: metadata key {key!r} holds something that is no non-negative integer")
        return [int(value) for value in values]

    def __contains__(self, key: str) -> bool:
        return key in self._values


def _shown(value: Any) -> str:
    return repr(value)[:80]
