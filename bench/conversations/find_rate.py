"""Finds the highest arrival rate that meets the SLO: bracketing, then bisection. Does not know what a probe does."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

STEP: Final = 1.5
"""Factor between two rates while bracketing."""
CLOSE: Final = 1.1
"""The search ends when the lowest rate that missed the SLO is at most this many times the highest that met it."""
MOST_PROBES: Final = 12
_ROUNDING: Final = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate, in conversations a second, and what was found."""

    rate: float
    kept: bool
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundRate:
    """The result of a search."""

    rate: float
    """The highest rate that met the SLO; that of one client alone if no probe did."""
    broken_rate: float | None
    """The lowest rate above it that did not; None if none was found."""
    probes: tuple[Probe, ...]
    not_reached: str
    """Empty, or why the result is not within CLOSE."""


def find_rate(
    probe: Callable[[float], dict[str, Any] | None],
    first_rate: float,
    *,
    kept_rate: float,
    step: float = STEP,
    most_probes: int = MOST_PROBES,
) -> FoundRate:
    """Searches from `first_rate` on, above `kept_rate`, which meets the SLO: that of one client alone.

    probe: the figures of a run at a rate, with `promise.kept`; None if there is no time left for it. step: CLOSE where
    `first_rate` is known to be about right.
    """
    probes: list[Probe] = []
    rate = max(first_rate, kept_rate * CLOSE)
    not_reached = ""
    while True:
        kept, broken = bracket(probes, kept_rate)
        if broken is not None and broken <= kept * CLOSE * _ROUNDING:
            break
        if len(probes) == most_probes:
            not_reached = f"{most_probes} probes were not enough"
            break
        rate = next_rate(kept, broken, step) if probes else rate
        found = probe(rate)
        if found is None:
            not_reached = f"no time was left for a probe at {rate:.3g} a second"
            break
        probes.append(Probe(rate, bool(found["promise"]["kept"]), found))
    return FoundRate(kept, broken, tuple(probes), not_reached)


def bracket(probes: Sequence[Probe], kept_rate: float) -> tuple[float, float | None]:
    """The highest rate that met the SLO, below all that missed it, and the lowest that missed it.

    kept_rate: is below all probes and keeps it.
    """
    broken = min((one.rate for one in probes if not one.kept), default=None)
    kept = [one.rate for one in probes if one.kept and (broken is None or one.rate < broken)]
    return max([kept_rate, *kept]), broken


def next_rate(kept: float, broken: float | None, step: float) -> float:
    """The rate to try next: a step up, or down, until one is kept and one broken a step apart; then their middle."""
    if broken is None:
        return kept * step
    return max(broken / step, math.sqrt(kept * broken))
