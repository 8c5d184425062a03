"""Estimates how many weights of a mixture-of-experts model a step reads: more per row, until all experts are read.

Knows the model's numbers only, no machine.
"""

import math
from dataclasses import dataclass
from typing import Final

_UNTOUCHED: Final = 1e-4


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """The numbers of a mixture-of-experts model on which step times depend."""

    count: int
    """Experts per layer."""
    per_token: int
    """Experts that the router chooses for each token."""
    share: float
    """The experts' share of all weights that one row is multiplied with, 0 to 1."""

    def distinct(self, rows: int) -> float:
        """Expected number of distinct experts per layer that `rows` rows use, if each row chooses independently."""
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** rows)

    def relative(self, rows: int) -> float:
        """How many times as many weights a step of `rows` rows reads as a step of one row."""
        return 1.0 + self.share * (self.distinct(rows) / self.per_token - 1.0)

    def rows_within(self, relative: float) -> float:
        """The inverse of `relative`: how many rows a step has that reads this many times one row's weights."""
        experts = self.per_token * (1.0 + (relative - 1.0) / self.share)
        if experts >= self.count:
            return math.inf
        return math.log(1.0 - max(experts, 0.0) / self.count) / math.log(1.0 - self.per_token / self.count)

    def tokens_for(self, rows: int) -> int:
        """How many tokens a step needs so that each expert gets `rows` rows on average."""
        return -(-rows * self.count // self.per_token)

    @property
    def tokens_to_touch_all(self) -> int:
        """How many tokens it takes until an expert has been used with a probability of 99.99 %."""
        if self.per_token == self.count:
            return 1
        return math.ceil(math.log(_UNTOUCHED) / math.log(1.0 - self.per_token / self.count))
