"""Chooses which prompts are computed and which wait for a shared page that another prompt computes.

Knows no pools or budgets.
"""

from collections.abc import Sequence

from app.engine.scheduling.sequence import SequenceState
from app.engine.scheduling.sequence_states import SequenceStates


def leaders(prompts: Sequence[SequenceState], page_tokens: int, states: SequenceStates | None) -> list[SequenceState]:
    """Returns the prompts that don't wait. `states`: None if the model has no recurrent states.

    The oldest never waits, nor does one that has computed part of a page: it must fill the page.
    """
    leading: list[SequenceState] = []
    coming: set[bytes] = set()
    followers = []
    for sequence in prompts:
        index = _next_shared(sequence, page_tokens) if states is None else states.next_kept(sequence)
        if sequence.chain is None or index is None:
            leading.append(sequence)
        elif sequence.computed % page_tokens or sequence is prompts[0]:
            leading.append(sequence)
            coming.add(sequence.chain.digest(index))
        else:
            followers.append((sequence, sequence.chain.digest(index)))
    followers.sort(key=lambda pair: pair[0].length - pair[0].computed)  # the shortest computes the page
    for sequence, digest in followers:
        if digest not in coming:
            coming.add(digest)
            leading.append(sequence)
    return leading


def _next_shared(sequence: SequenceState, page_tokens: int) -> int | None:
    """The digest of the next page, if another sequence's computation of it can be shared; else None."""
    index = sequence.computed // page_tokens
    return index if index < (sequence.length - 1) // page_tokens else None
