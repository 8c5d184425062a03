"""The highest arrival rate that keeps the promise: bracketing, then bisection. Does not know what a probe does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

STEP: Final = 1.5
"""From one rate of the bracket to the next."""
CLOSE: Final = 1.1
"""The search ends when the lowest rate that broke the promise is at most so many times the highest that kept it."""
MOST_PROBES: Final = 12


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
    """The highest rate that kept the promise; 0 if none did."""
    broken_rate: float | None
    """The lowest rate above it that did not; None if none was found."""
    probes: tuple[Probe, ...]


def find_rate(
    probe: Callable[[float], dict[str, Any]], first_rate: float, *, most_probes: int = MOST_PROBES
) -> FoundRate:
    """Searches from `first_rate` on. probe: the figures of a run at a rate, with `promise.kept`."""
    probes: list[Probe] = []
    rate = first_rate
    while len(probes) < most_probes:
        found = probe(rate)
        probes.append(Probe(rate, bool(found["promise"]["kept"]), found))
        kept, broken = bracket(probes)
        if kept and broken is not None and broken <= kept * CLOSE:
            break
        rate = next_rate(kept, broken)
    kept, broken = bracket(probes)
    return FoundRate(kept, broken, tuple(probes))


def bracket(probes: Sequence[Probe]) -> tuple[float, float | None]:
    """The highest rate below all that broke the promise and that kept it (0 without one), and the lowest that broke."""
    broken = min((one.rate for one in probes if not one.kept), default=None)
    kept = max((one.rate for one in probes if one.kept and (broken is None or one.rate < broken)), default=0.0)
    return kept, broken


def next_rate(kept: float, broken: float | None) -> float:
    """The rate to try next: the geometric middle of the bracket, or a step out of it."""
    if broken is None:
        return kept * STEP
    return broken / STEP if not kept else (kept * broken) ** 0.5
