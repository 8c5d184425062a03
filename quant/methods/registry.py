"""Ways to round a matrix to few bits, behind one interface (`problem.Method`), by the names of `convert --method`."""

from collections.abc import Mapping
from typing import Final

from quant.codes.matrix import QuantizedMatrix
from quant.methods.descent import descended, refitted
from quant.methods.gptq import feedback_of, gptq_with
from quant.methods.problem import MatrixProblem, Method
from quant.methods.rounding import round_to_nearest, search_scales

_DESCENTS: Final = 2


def gptq(problem: MatrixProblem) -> QuantizedMatrix:
    """GPTQ, then rounds of refitting the scales and descending over the codes. int8 is rounded to nearest."""
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
