"""The methods that round one matrix at a time, by the names of `convert --method`."""

from collections.abc import Mapping
from typing import Final

from quant.codes.matrix import QuantizedMatrix
from quant.methods.descent import descended, refitted
from quant.methods.gptq import feedback_of, gptq_with
from quant.methods.problem import MatrixProblem, Method
from quant.methods.rounding import round_to_nearest, search_scales

_DESCENTS: Final = 2


def gptq(problem: MatrixProblem) -> QuantizedMatrix:
    """GPTQ, then twice: coordinate descent over the codes and a least-squares fit of the scales. int8: to nearest."""
    if problem.rounding.type == "int8":
        return round_to_nearest(problem)
    problem.blocks()
    moments = problem.needed_moments()
    matrix = gptq_with(problem, feedback_of(moments, problem.rounding.group))
    for _ in range(_DESCENTS):
        matrix = descended(refitted(matrix, problem.weights, moments), problem.weights, moments)
    return refitted(matrix, problem.weights, moments)


METHODS: Final[Mapping[str, Method]] = {"rtn": round_to_nearest, "scale": search_scales, "gptq": gptq}
"""All but "rtn" need calibration."""
