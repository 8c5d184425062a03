"""Checks which outputs a compiled grammar allows, token by token, on the engine's own constraint."""

from collections.abc import Sequence

import numpy as np

from app.workers.constraints import Constraints


def lets_through(constraints: Constraints, grammar: str, token_ids: Sequence[int], vocabulary: int) -> bool:
    """Whether the grammar allows each of the tokens in its place."""
    constraint = constraints.compile(grammar)
    for token in token_ids:
        mask = np.full(-(-vocabulary // 32), 0xFFFFFFFF, np.uint32)
        constraint.fill_mask(mask)
        if not mask[token // 32] >> np.uint32(token % 32) & np.uint32(1):
            return False
        constraint.accept(token)
        assert constraint.error is None
    return True
