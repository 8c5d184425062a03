"""Defaults that several layers share, each written down once: the settings, the engine and the benchmarks use these."""

from typing import Final

PROMPT_CHUNK_TOKENS: Final = 256
"""The most prompt tokens of a step in which other requests decode."""

STEP_TOKENS: Final = 512
"""The most tokens of a step for a model without experts."""

SHORT_THINKING_TOKENS: Final = 512
"""The most tokens of a short thought."""
