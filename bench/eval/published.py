"""Figures of quality that the papers behind this project published, for tables to show beside our own.

Source: the thesis on a layered chat system for Llama-2 with group-wise int4 on a Xeon 8468, its table 4.2. Its C-Eval
by category is a picture without numbers, and so is the table of INT4 and FP32 over four tasks in Intel's article on its
Extension for Transformers.
"""

from collections.abc import Mapping
from typing import Final

LONGBENCH_PERPLEXITY: Final[Mapping[str, Mapping[str, float]]] = {
    "Llama-2-7B": {"fp32": 5.2709, "int8": 5.3681, "sym_int4": 5.5676, "asym_int4": 5.5297},
    "Llama-2-13B": {"fp32": 4.8999, "int8": 4.9168, "sym_int4": 4.9445, "asym_int4": 5.0289},
}
"""By model and weight type, over the 14 English sets of LongBench together; scales for groups of 64."""
