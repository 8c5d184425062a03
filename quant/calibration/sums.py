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
"""How many rows the whole layer's moments weigh beside an expert's own, per input."""
MOST_BLOCK_INPUTS: Final = 1024
"""In blocks, the time for a weight does not grow with the matrix. Measured: docs/tuning.md."""
BLOCK_STEP: Final = 128
"""A multiple of every size of a group."""


@dataclass(frozen=True, slots=True)
class InputSums:
    """Means over tokens of s s^T, for inputs s, and of d s^T, for differences d that belong to them."""

    moments: F32
    """[inputs, inputs]"""
    against: F32
    """[size of d, inputs]"""

    def moved(self, weights: F32) -> F32:
        """The deficit of a matrix' outputs as a mean of its products with s^T, if d are differences of inputs."""
        return weights @ self.against

    def missed(self, weights: F32) -> F32:
        """The deficit likewise, if d are the wanted outputs."""
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


def block_size(inputs: int) -> int:
    """How many of a matrix' inputs a block of moments has: as many in each as multiples of BLOCK_STEP allow."""
    blocks = -(-inputs // MOST_BLOCK_INPUTS)
    return min(inputs, -(-inputs // (blocks * BLOCK_STEP)) * BLOCK_STEP)


def block_sums(inputs: F32) -> F32:
    """The sum of s s^T over rows s, for each block of inputs by itself: [blocks, block_size, block_size].

    The last block may have fewer inputs, and zeros in their place.
    """
    cols = inputs.shape[1]
    size = block_size(cols)
    sums = np.zeros((-(-cols // size), size, size), np.float32)
    for block, begin in zip(sums, range(0, cols, size), strict=True):
        own = np.ascontiguousarray(inputs[:, begin : begin + size])
        block[: own.shape[1], : own.shape[1]] = own.T @ own
    return sums


def expert_moments(
    inputs: Callable[[NDArray[np.intp]], F32],
    experts: NDArray[np.int32],
    count: int,
    layer: F32,
    sums: Callable[[F32], F32] = lambda rows: rows.T @ rows,
) -> Iterator[F32]:
    """Yields the moments [inputs, inputs] of each expert's inputs, shrunk towards the layer's.

    experts: the expert of each row. inputs: returns fp32 rows by number. Few rows determine little of a matrix with
    many inputs; an expert without rows gets the layer's moments. sums: s s^T over rows s, in the shape of `layer`.
    """
    order = np.argsort(experts, kind="stable")
    ends = np.searchsorted(experts[order], np.arange(count), side="right")
    begin = 0
    for end in ends:
        begin, mine = int(end), order[begin:end]
        if not len(mine):
            yield layer
            continue
        own = inputs(mine)
        prior = np.float32(PRIOR_ROWS_PER_INPUT * own.shape[1])
        moments = sums(own)
        moments += prior * layer
        moments /= np.float32(len(own)) + prior
        yield moments
