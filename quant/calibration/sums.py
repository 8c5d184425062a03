"""Moments of inputs, summed over tokens in the order in which they come.

Knows neither layers nor matrices.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import F32

PRIOR_ROWS_PER_INPUT: Final = 0.125
"""How many rows of the whole layer count beside an expert's own, for each of its inputs."""


@dataclass(frozen=True, slots=True)
class InputSums:
    """Means over tokens of s s^T, for inputs s, and of d s^T, for differences d that belong to them."""

    moments: F32
    """[inputs, inputs]"""
    against: F32
    """[size of d, inputs]"""

    def moved(self, weights: F32) -> F32:
        """What a matrix' outputs miss, as a mean of its products with s^T, where d are differences of inputs."""
        return weights @ self.against

    def missed(self, weights: F32) -> F32:
        """The same, where d are the outputs that are wanted."""
        return self.against - weights @ self.moments


def summed(rows: Iterable[tuple[F32, F32]]) -> InputSums:
    """rows: inputs [n, inputs] and differences [n, any size] of some tokens after others."""
    totals: tuple[F32, F32] | None = None
    count = 0
    for inputs, differences in rows:
        products = inputs.T @ inputs, differences.T @ inputs
        if totals is None:
            totals = products
        else:
            for total, product in zip(totals, products, strict=True):
                total += product
        count += len(inputs)
    assert totals is not None, "there is at least one token"
    for total in totals:
        total /= np.float32(count)
    return InputSums(*totals)


def mean_square(inputs: F32) -> F32:
    """The mean of s s^T over rows s: [inputs, inputs]."""
    moments: F32 = inputs.T @ inputs
    moments /= np.float32(len(inputs))
    return moments


def expert_moments(
    inputs: Callable[[NDArray[np.intp]], F32], experts: NDArray[np.int32], count: int, layer: F32
) -> Iterator[F32]:
    """For each of `count` experts the moments of its inputs [inputs, inputs], shrunk towards the layer's.

    experts: whose each row is. inputs: fp32 rows by their numbers. Few rows say little of a matrix with many inputs;
    an expert without any gets the layer's moments.
    """
    prior = np.float32(PRIOR_ROWS_PER_INPUT * len(layer))
    order = np.argsort(experts, kind="stable")
    ends = np.searchsorted(experts[order], np.arange(count), side="right")
    begin = 0
    for end in ends:
        begin, mine = int(end), order[begin:end]
        if not len(mine):
            yield layer
            continue
        own = inputs(mine)
        moments: F32 = own.T @ own
        moments += prior * layer
        moments /= np.float32(len(own)) + prior
        yield moments
