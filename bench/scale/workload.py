"""What the simulated requests ask for, and how fast a simulated worker computes: real lengths, measured step times.

Knows nothing of routers. A token is four characters here, as tokenizers make of English text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

CHARACTERS_PER_TOKEN: Final = 4
_SHARES: Final = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
# Quantiles at _SHARES of the first question and its answer in 1,024 sampled conversations (PPL.LLM's load), in tokens.
_PROMPT_TOKENS: Final = (1, 4, 7, 16, 30, 101, 501, 769, 1113)
_OUTPUT_TOKENS: Final = (1, 8, 23, 136, 286, 448, 748, 955, 1095)

# bench/results/compare-1.1b.json: tokens a second of the 1.1B shape on two cores of Zen 4, by streams; of its prompts.
_DECODED_PER_S: Final = {1: 76.85, 4: 229.34, 8: 294.43, 16: 289.32, 32: 306.26}
_PREFILLED_PER_S: Final = 348.78


@dataclass(frozen=True, slots=True)
class Lengths:
    """Pairs of prompt and output tokens to draw from."""

    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def built_in(cls) -> "Lengths":
        """4,096 pairs with the quantiles of real conversations; prompt and output are independent."""
        rng = Random(35)

        def draw(quantiles: Sequence[int]) -> int:
            return max(1, round(float(np.interp(rng.random(), _SHARES, quantiles))))

        return cls(tuple((draw(_PROMPT_TOKENS), draw(_OUTPUT_TOKENS)) for _ in range(4096)))

    @classmethod
    def of_file(cls, path: Path) -> "Lengths":
        """The first question and its answer of each conversation: a JSON list of {"conversations": [{"value"}]}.

        Raises OSError, and ValueError if the file has no such conversations.
        """
        try:
            data: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            turns = [[len(turn["value"]) for turn in one["conversations"][:2]] for one in data]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{path}: not a JSON list of {{"conversations": [{{"value": "..."}}]}}') from error
        pairs = tuple(tuple(max(1, length // CHARACTERS_PER_TOKEN) for length in turn) for turn in turns)
        whole = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
        if not whole:
            raise ValueError(f"{path}: no conversation has a question and an answer")
        return cls(whole)

    def mean_output(self) -> float:
        """Mean output length in tokens."""
        return sum(output for _, output in self.pairs) / len(self.pairs)

    def prompt_per_output(self) -> float:
        """Prompt tokens for each output token."""
        return sum(prompt for prompt, _ in self.pairs) / sum(output for _, output in self.pairs)


def step_times_s(lengths: Lengths, slots: int) -> list[float]:
    """Seconds of a step with 0, 1 ... `slots` running requests, each of which gets a token of it.

    Prompts are spread over all steps in proportion: each running request brings its share of prompt tokens.
    """
    streams = list(_DECODED_PER_S)
    seconds = [n / rate for n, rate in _DECODED_PER_S.items()]
    prompt_s = lengths.prompt_per_output() / _PREFILLED_PER_S
    most, per_stream_s = streams[-1], seconds[-1] / streams[-1]

    def decode_s(running: int) -> float:
        return float(np.interp(running, streams, seconds)) if running <= most else running * per_stream_s

    return [0.0, *(decode_s(n) + n * prompt_s for n in range(1, slots + 1))]


def requests_per_s(lengths: Lengths, slots: int) -> float:
    """Throughput of a worker of speed 1 with all slots taken."""
    return slots / step_times_s(lengths, slots)[slots] / lengths.mean_output()
