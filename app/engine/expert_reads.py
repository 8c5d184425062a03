"""How many weights a step reads of a model with experts: more with each row, until all experts are read.

Knows the model's numbers only, no machine.
"""

import math
from dataclasses import dataclass
from typing import Final

_UNTOUCHED: Final = 1e-4


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """A model's experts, as far as step times depend on them."""

    count: int
    """Experts of a layer."""
    per_token: int
    """How many of them each row takes."""
    share: float
    """Of the weights that one row is multiplied with, those of its experts."""

    def distinct(self, rows: int) -> float:
        """Experts of a layer that so many rows take together, as expected if each chooses independently."""
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** rows)

    def relative(self, rows: int) -> float:
        """Weights that a step of so many rows reads, relative to a step of one row."""
        return 1.0 + self.share * (self.distinct(rows) / self.per_token - 1.0)

    def rows_within(self, relative: float) -> float:
        """The rows of a step that reads so many times the weights of one row's: the inverse of `relative`."""
        experts = self.per_token * (1.0 + (relative - 1.0) / self.share)
        if experts >= self.count:
            return math.inf
        return math.log(1.0 - max(experts, 0.0) / self.count) / math.log(1.0 - self.per_token / self.count)

    def tokens_for(self, rows: int) -> int:
        """Tokens of a step in which each expert gets so many rows, on average."""
        return -(-rows * self.count // self.per_token)

    @property
    def tokens_to_touch_all(self) -> int:
        """Tokens after which an expert has been used, but for one in ten thousand."""
        if self.per_token == self.count:
            return 1
        return math.ceil(math.log(_UNTOUCHED) / math.log(1.0 - self.per_token / self.count))
