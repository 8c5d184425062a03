"""The interface of a rounding method: takes a matrix with calibration inputs, returns a quantized matrix.

Does not know where weights and calibration inputs come from (`quant.calibration`), nor how codes are packed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from quant.codes.matrix import F32, IntegerType, QuantizedMatrix, grouped
from quant.errors import TensorError


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a matrix is stored: its type, the number of inputs that share a scale, and lut4's table."""

    type: IntegerType
    group: int
    table: tuple[int, ...] | None
    """lut4's sixteen integers, None for the other types. There is no default, because codes need their table."""

    def __post_init__(self) -> None:
        """Raises ValueError for lut4 without a table, and for a table with another type."""
        if (self.type == "lut4") != (self.table is not None):
            raise ValueError(f"{self.type} {'with' if self.table else 'without'} a table")

    def needed_table(self) -> tuple[int, ...]:
        """Returns lut4's table, which must be there."""
        assert self.table is not None
        return self.table


@dataclass(frozen=True, slots=True)
class MatrixProblem:
    """One matrix whose codes and scales are to be chosen.

    weights: fp32 [rows, cols], finite. moments: fp32 [cols, cols], the mean over calibration tokens of x x^T for the
    inputs x that the matrix will see; None where there was no calibration. The error to be minimized is
    tr((W - Q) moments (W - Q)^T): the mean squared error of the matrix' outputs. For "quick" they may be [blocks,
    size, size], of so many inputs after others (`sums.block_sums`): what two blocks have in common is not known.
    """

    name: str
    weights: F32
    rounding: Rounding
    moments: F32 | None = None

    def blocks(self) -> F32:
        """weights as [rows, groups, group]. Raises TensorError for a wrong shape or group, NaN or infinite values."""
        blocks = grouped(self.name, self.weights, self.rounding.group)
        if not np.isfinite(blocks).all():
            raise TensorError(self.name, "holds NaN or infinite values")
        return blocks

    def needed_moments(self) -> F32:
        """Returns moments, damped to be positive definite in fp32. Raises TensorError if there are none."""
        return damped(self._sound_moments())

    def parts(self) -> Iterator["MatrixProblem"]:
        """A problem for each block of inputs, its moments damped and shrunk towards their diagonal."""
        found, begin = self._sound_moments(), 0
        for moments in found if found.ndim == 3 else found[None]:
            weights = np.ascontiguousarray(self.weights[:, begin : begin + len(moments)])
            begin += len(moments)
            inputs = weights.shape[1]
            yield replace(self, weights=weights, moments=damped(shrunk(moments[:inputs, :inputs])))

    def _sound_moments(self) -> F32:
        if self.moments is None:
            raise TensorError(self.name, "this method needs calibration")
        if not np.isfinite(self.moments).all():
            raise TensorError(self.name, "its calibration inputs hold NaN or infinite values")
        return self.moments


Method = Callable[[MatrixProblem], QuantizedMatrix]

DAMPING = 0.05
"""The share of the diagonal's median that is added to the diagonal. Frantar et al. 2022, "GPTQ", section 3.3, add 0.01
of its mean; but a few strong inputs can make the mean much larger than the median, and such damping hides the others.
Measured: docs/tuning.md.
"""

SHRINKAGE = 0.3
"""The share of the moments beside the diagonal that "quick" leaves out. Measured: docs/tuning.md."""

CORRECTION_DAMPING = 0.1
"""The same for `corrected`, which would otherwise overfit the calibration text. Measured: docs/tuning.md."""


def damped(moments: F32, damping: float = DAMPING) -> F32:
    """A copy of moments with `damping` times the median of its diagonal added to the diagonal.

    Inputs that were always zero do not count for the median. A hundredth of the mean is its lower limit, without which
    the result could not be inverted in fp32.
    """
    powers = np.diagonal(moments)[np.diagonal(moments) > 0]
    size = max(float(np.median(powers)), 0.01 * float(powers.mean())) if powers.size else 0.0
    result = moments.copy()
    result[np.diag_indices_from(result)] += np.float32(damping * size if size > 0 else 1.0)
    return result


def shrunk(moments: F32) -> F32:
    """A copy in which what two inputs have in common counts less: few tokens show too much of it."""
    result = moments * np.float32(1 - SHRINKAGE)
    np.fill_diagonal(result, np.diagonal(moments))
    return result


def corrected(weights: F32, moments: F32, missing: F32) -> F32:
    """Returns the weights whose outputs on the quantized model's inputs are nearest to the original outputs.

    Least squares: W + A H^-1 with H = moments = mean of s s^T (damped), where s is the input in the quantized model,
    and A = missing = mean of d s^T, where d is the difference from W's outputs to the wanted ones. This corrects errors
    of earlier matrices as far as one matrix can. Damping keeps the result near W.
    """
    return weights + np.linalg.solve(damped(moments, CORRECTION_DAMPING), missing.T).T
