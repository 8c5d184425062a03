"""Row orders of fused and interleaved matrices: for each row of the engine's matrix, the stored row.

Also ALiBi's slopes. Knows no families and no tensors.
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def part_of_heads(groups: int, parts: tuple[int, ...], part: int, head_dim: int) -> Rows:
    """Rows of one part of a fused matrix that has, for each group of heads, the parts one after the other.

    parts: how many heads each part has in a group: (1, 1, 1) for query, key and value of one head.
    """
    width = sum(parts) * head_dim
    first = sum(parts[:part]) * head_dim
    inside = np.arange(first, first + parts[part] * head_dim)
    return (np.arange(groups)[:, None] * width + inside).reshape(-1)


def from_tiled_heads(groups: int, each: int, head_dim: int) -> Rows:
    """Rows of heads by group, if the file stores each group's first head, then each one's second, and so on.

    each: heads of a group.
    """
    heads = np.arange(groups * each).reshape(each, groups).T.reshape(-1)
    return (heads[:, None] * head_dim + np.arange(head_dim)).reshape(-1)


def rotate_half(rows: Rows, head_dim: int, rotary_dim: int) -> Rows:
    """Reorders interleaved rotary heads (pairs are neighbours) to first halves, then second halves."""
    heads = rows.reshape(-1, head_dim)
    rotated = heads[:, :rotary_dim].reshape(len(heads), rotary_dim // 2, 2).swapaxes(1, 2)
    return np.concatenate([rotated.reshape(len(heads), rotary_dim), heads[:, rotary_dim:]], axis=1).reshape(-1)


def rotary_first(heads: int, others: int, rotary_dim: int, *, is_interleaved: bool) -> Rows:
    """Reorders heads that are stored with their rotary part last, after `others` rows, so that it comes first.

    is_interleaved: whether rotary pairs are stored as neighbours; they are reordered to "rotate half".
    """
    stored = np.arange(heads * (others + rotary_dim)).reshape(heads, others + rotary_dim)
    rows = np.concatenate([stored[:, others:], stored[:, :others]], axis=1).reshape(-1)
    return rotate_half(rows, others + rotary_dim, rotary_dim) if is_interleaved else rows


def alibi_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """ALiBi's slope of each head (Press et al. 2022): 2^(-8 i / n) for a power of two, with others interpolated."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-bias_max * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-bias_max * i / (2 * power)) for i in range(1, 2 * (heads - power) + 1, 2)]
    return tuple(slopes)
