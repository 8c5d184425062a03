"""Figures that others have published, for the page to show beside the machine's own.

All are of one model on one machine that are neither the user's model nor machine, so that only their order and their
ratios compare. The service's figures with TDX are `bench.confidential.PUBLISHED`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.eval.published import LONGBENCH_PERPLEXITY

LABEL: Final = "published: Llama-2-7B, 48-core Xeon 8468"
"""Heading of their columns."""


@dataclass(frozen=True, slots=True)
class PublishedType:
    """A weight type's figures; None where nothing was published."""

    memory_mb: float
    load_s: float | None
    perplexity: float
    """Mean over 14 English sets of LongBench."""


_PERPLEXITY: Final = LONGBENCH_PERPLEXITY["Llama-2-7B"]
TYPES: Final[Mapping[str, PublishedType]] = {
    "fp32": PublishedType(25833, 30.1, _PERPLEXITY["fp32"]),
    "int8": PublishedType(7324, None, _PERPLEXITY["int8"]),
    "sym_int4": PublishedType(3976, 1.68, _PERPLEXITY["sym_int4"]),
    "asym_int4": PublishedType(4173, None, _PERPLEXITY["asym_int4"]),
}
PROMPT_TOKENS, NEW_TOKENS = 1024, 256
FIRST_TOKEN_S: Final = 4.039
NEXT_TOKEN_S: Final = 0.161
RESPONSE_S: Final = FIRST_TOKEN_S + (NEW_TOKENS - 1) * NEXT_TOKEN_S
"""Computed from the two figures above."""
TWO_WORKERS: Final = "nearly twice the throughput of one"
ACROSS_NODES: Final = "a next token that takes nearly twice as long as on one node"
