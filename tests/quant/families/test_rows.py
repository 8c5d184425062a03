"""Orders of rows and ALiBi's slopes against numbers that were worked out by hand or published."""

import numpy as np
import pytest

from quant.families.rows import alibi_slopes, from_tiled_heads, part_of_heads, rotate_half


def test_the_parts_of_heads_that_lie_side_by_side() -> None:
    # Two groups of two queries, one key and one value, each of two numbers.
    query, key, value = (part_of_heads(2, (2, 1, 1), part, 2).tolist() for part in range(3))
    assert query == [0, 1, 2, 3, 8, 9, 10, 11]
    assert key == [4, 5, 12, 13]
    assert value == [6, 7, 14, 15]


def test_neighbours_become_halves() -> None:
    # Heads of six numbers, of which four are rotated.
    assert rotate_half(np.arange(12), 6, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


def test_heads_that_are_stored_in_turn() -> None:
    # Two groups a and b of three heads of two numbers: stored are a0 b0 a1 b1 a2 b2.
    assert from_tiled_heads(2, 3, 2).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]


def test_slopes() -> None:
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    # The paper's rule for other numbers: those of 8 heads, then every second one of 16.
    assert alibi_slopes(12) == pytest.approx([*alibi_slopes(8), *(2.0**-e for e in (0.5, 1.5, 2.5, 3.5))])
    assert alibi_slopes(4, 4.0) == tuple(2.0**-i for i in range(1, 5))
