"""Models whose layers' heads differ: sums over the layers, in which a layer with larger heads weighs more.

Computed from a model's description. Does not know how many keys tokens see.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class MixedHeads:
    """Sums over all layers."""

    query_numbers: int
    """Numbers in a token's queries."""
    kv_numbers: int
    """Numbers in a token's keys; its values have as many."""
    kv_heads: int
    windows: tuple[tuple[int, int, int], ...] = ()
    """Tuples (keys that a token sees, itself included; query_numbers; kv_numbers) by window."""

    @classmethod
    def of(cls, values: Mapping[str, Any] | None) -> Self | None:
        return None if values is None else cls(**{**values, "windows": tuple(map(tuple, values["windows"]))})


def mixed_heads_of(decoder: Mapping[str, Any]) -> MixedHeads | None:
    """Computes the sums from a packed model's description; None if all layers have the same heads."""
    found = [decoder["kinds"][kind].get("attention") for kind in decoder["layers"]]
    layers = []
    for each in filter(None, found):
        size = each.get("head_dim", decoder["head_dim"])
        # A layer that reuses another one's keys stores none.
        kv_heads = each.get("kv_heads", decoder["kv_heads"]) if each.get("keys_of") is None else 0
        layers.append((decoder["heads"] * size, kv_heads * size, kv_heads, each.get("window", 0)))
    if len({(queries, keys) for queries, keys, *_ in layers}) < 2:
        return None
    windows = sorted({window for *_, window in layers if window})
    return MixedHeads(
        query_numbers=sum(queries for queries, *_ in layers),
        kv_numbers=sum(keys for _, keys, *_ in layers),
        kv_heads=sum(heads for _, _, heads, _ in layers),
        windows=tuple(
            (window, sum(q for q, _, _, w in layers if w == window), sum(k for _, k, _, w in layers if w == window))
            for window in windows
        ),
    )
