"""The methods that round one matrix at a time, by the names of `convert --method`."""

from collections.abc import Mapping
from typing import Final

from quant.codes.matrix import QuantizedMatrix
from quant.methods.descent import Descent
from quant.methods.gptq import feedback_of, gptq_with, rounded
from quant.methods.problem import MatrixProblem, Method
from quant.methods.rounding import round_to_nearest, search_scales
from quant.methods.row_parts import by_rows, joined

_DESCENTS: Final = 2


def gptq(problem: MatrixProblem) -> QuantizedMatrix:
    """Runs GPTQ, then twice coordinate descent and a least-squares fit of the scales. int8: rounds to nearest."""
    if problem.rounding.type == "int8":
        return round_to_nearest(problem)
    problem.blocks()
    moments = problem.needed_moments()
    feedback = feedback_of(moments, problem.rounding.group)

    def quantize(part: slice) -> QuantizedMatrix:
        weights = problem.weights[part]
        matrix, descent = rounded(weights, feedback, problem.rounding), Descent(weights, moments)
        for _ in range(_DESCENTS):
            matrix = descent.descended(descent.refitted(matrix))
        return descent.refitted(matrix)

    return by_rows(len(problem.weights), quantize)


def quick(problem: MatrixProblem) -> QuantizedMatrix:
    """GPTQ of each block of inputs by itself. int8: to nearest."""
    if problem.rounding.type == "int8":
        return round_to_nearest(problem)
    problem.blocks()
    return joined([_once(part) for part in problem.parts()], axis=1)


def _once(part: MatrixProblem) -> QuantizedMatrix:
    assert part.moments is not None
    return gptq_with(part, feedback_of(part.moments, part.rounding.group))


METHODS: Final[Mapping[str, Method]] = {
    "rtn": round_to_nearest,
    "scale": search_scales,
    "quick": quick,
    "gptq": gptq,
}
"""All methods but "rtn" need calibration."""
