"""Splits a method's work over the processors by rows of the matrix, which are independent.

Knows neither weights nor methods.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from quant.codes.matrix import QuantizedMatrix

_ROWS: Final = 288
"""Rows of a part: enough for fast matrix products, few enough for the memory of its normal equations."""


def by_rows(rows: int, quantize: Callable[[slice], QuantizedMatrix]) -> QuantizedMatrix:
    """Builds the matrix of all rows; `quantize` makes the rows of a slice, and is called from several threads.

    NumPy's products run single-threaded meanwhile, to avoid oversubscription.
    """
    parts = [slice(begin, min(begin + _ROWS, rows)) for begin in range(0, rows, _ROWS)]
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return joined(list(pool.map(quantize, parts)))


def joined(parts: list[QuantizedMatrix], axis: int = 0) -> QuantizedMatrix:
    """One matrix of parts of its rows, or with axis 1 of its inputs."""
    first = parts[0]
    minima = [part.minima for part in parts if part.minima is not None]
    return QuantizedMatrix(
        first.type,
        first.group,
        np.concatenate([part.codes for part in parts], axis),
        np.concatenate([part.scales for part in parts], axis),
        np.concatenate(minima, axis) if minima else None,
        first.table,
    )
