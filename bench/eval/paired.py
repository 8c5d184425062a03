"""Compares two models on the same tasks or windows: what both have in common cancels.

Knows results only as their outcomes: a digit for each task, log probabilities summed for each window.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np


def paired_accuracy(base: str, other: str) -> dict[str, Any]:
    """What `other` gains over `base`, digits of 0 and 1 for the same tasks: the difference, its standard error, a test.

    lost, won: tasks that only one of them has right. mcnemar_p: how likely at least so uneven a split of them is if
    neither model is better (exact, both sides). Raises ValueError if they are not of the same tasks.
    """
    if len(base) != len(other) or not base:
        raise ValueError(f"results of {len(base)} and {len(other)} tasks can't be compared")
    lost = sum(pair == ("1", "0") for pair in zip(base, other, strict=True))
    won = sum(pair == ("0", "1") for pair in zip(base, other, strict=True))
    difference = (won - lost) / len(base)
    variance = (won + lost) / len(base) - difference**2
    return {
        "difference": difference,
        "difference_stderr": math.sqrt(variance / max(1, len(base) - 1)),
        "lost": lost,
        "won": won,
        "mcnemar_p": sign_test(lost, won),
    }


def sign_test(lost: int, won: int) -> float:
    """The exact two-sided probability of a split at least as uneven by tosses of a fair coin."""
    total = lost + won
    tail = sum(math.comb(total, each) for each in range(min(lost, won) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**total)))


def paired_perplexity(base: Sequence[float], other: Sequence[float], tokens: Sequence[int]) -> dict[str, float]:
    """The rise of perplexity over `base`, from each window's sum of log probabilities, with its standard error.

    The standard error takes windows as independent, tokens within one not. Raises ValueError if the windows differ.
    """
    if not len(base) == len(other) == len(tokens) or not tokens:
        raise ValueError(f"results of {len(base)} and {len(other)} windows can't be compared")
    lengths = np.array(tokens, np.float64)
    lost = np.array(base) - np.array(other)
    mean = float(lost.sum() / lengths.sum())
    spread = float(((lost - mean * lengths) ** 2).sum())
    windows = len(tokens)
    error = math.sqrt(spread * windows / max(1, windows - 1)) / float(lengths.sum())
    return {"rise": math.exp(mean) - 1, "rise_stderr": math.exp(mean) * error}
