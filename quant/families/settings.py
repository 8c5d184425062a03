"""Typed access to a configuration: every error names the file and the key.

Does not know which keys there are, nor what they mean.
"""

import math
from typing import Any

from quant.errors import SourceError, UnsupportedModelError
from quant.families.family import Config

_MOST = 1e15


class Settings:
    """One object of a configuration. A null key counts as absent. Getters raise SourceError."""

    def __init__(self, config: Config, where: str, prefix: str = "") -> None:
        """where: the file, for messages; prefix: the keys that lead to this object, each with a point after it."""
        self._config, self.where, self._prefix = config, where, prefix

    def __contains__(self, key: str) -> bool:
        return self._config.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value unchanged, or the default."""
        value = self._config.get(key)
        return default if value is None else value

    def size(self, key: str, default: Any = None) -> int:
        """A positive integer; required if there is no default."""
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.wrong(key, "is missing" if value is None else f"is {value!r}, not a positive integer")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A non-negative integer; required if there is no default."""
        return 0 if self.get(key, default) == 0 else self.size(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required if there is no default."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not abs(value) <= _MOST:
            raise self.wrong(key, "is missing" if value is None else f"is {value!r}, not a number in range")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; required if there is no default."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, f"is {self.get(key)!r}, not a positive number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"is {value!r}, not a string")
        return value

    def numbers(self, key: str, count: int) -> list[float]:
        """A list of `count` finite numbers, required."""
        values = self.get(key, [])
        if not isinstance(values, list) or len(values) != count:
            raise self.wrong(key, f"is not a list of {count} numbers")
        if any(type(value) not in (int, float) or not math.isfinite(value) for value in values):
            raise self.wrong(key, "holds something that is no number")
        return [float(value) for value in values]

    def items(self, key: str, count: int | None = None) -> list[Any]:
        """A list, of `count` items if given; empty if the key is absent and no count is given."""
        values = self.get(key, [])
        if not isinstance(values, list) or (count is not None and len(values) != count):
            raise self.wrong(key, f"is {values!r:.80}, not a list" + ("" if count is None else f" of {count}"))
        return values

    def section(self, key: str) -> "Settings | None":
        """An object, or None if the key is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "is not an object")
        return Settings(value, self.where, f"{self._prefix}{key}.")

    def only(self, key: str, *supported: object) -> None:
        """Raises UnsupportedModelError unless the key is absent or has one of these values."""
        value = self.get(key, supported[0])
        if value not in supported:
            known = " or ".join(map(repr, supported))
            raise self.unsupported(key, f"{value!r} is not supported; supported: {known}")

    def wrong(self, key: str, problem: str) -> SourceError:
        """Makes an error that names file and key."""
        return SourceError(f"{self.where}: {self._prefix}{key} {problem}")

    def unsupported(self, key: str, problem: str) -> UnsupportedModelError:
        """Makes an error that names file and key, for a valid option that this engine does not run."""
        return UnsupportedModelError(f"{self.where}: {self._prefix}{key} {problem}")
