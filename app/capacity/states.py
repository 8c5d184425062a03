"""The demands of Gated DeltaNet and gated convolution layers: a state of fixed size for each text, in pages.

Computed from a model's description. A page covers 32 tokens of all such layers: for Gated DeltaNet each value head's
state after them, and each token's update, from which the states between are computed; for a convolution its inputs.
Does not know how many pages there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PAGES_PER_ANSWER: Final = 2
"""State pages of a running text: the page that it fills, and the one before."""
_PAGE_TOKENS: Final = 32
_NUMBER_BYTES: Final = 4
_DELTA_TAPS: Final = 4
_CONV_TAPS: Final = 3


@dataclass(frozen=True, slots=True)
class States:
    """Sums over all such layers."""

    layers: int = 0
    page_bytes: int = 0
    read_bytes: int = 0
    """Bytes that a step reads for each text: the state, and half a page's tokens."""
    macs_per_token: int = 0
    """Multiply-adds in fp32, beside those with weights."""

    @property
    def answer_bytes(self) -> int:
        """Bytes of the state pages of a running text."""
        return PAGES_PER_ANSWER * self.page_bytes


NO_STATES: Final = States()
"""For a model whose layers all have attention."""


def states_of(decoder: Mapping[str, Any]) -> States:
    """Computes the states from a packed model's description; NO_STATES if all of its layers have attention."""
    kinds = [decoder["kinds"][kind] for kind in decoder["layers"]]
    each = [_of_layer(kind, decoder["hidden_size"]) for kind in kinds if "delta" in kind or "conv" in kind]
    return States(
        layers=len(each),
        page_bytes=sum(layer.page_bytes for layer in each),
        read_bytes=sum(layer.read_bytes for layer in each),
        macs_per_token=sum(layer.macs_per_token for layer in each),
    )


def _of_layer(kind: Mapping[str, Any], hidden: int) -> States:
    if "conv" in kind:
        taps = kind["conv"].get("taps", _CONV_TAPS)
        return States(1, _NUMBER_BYTES * _PAGE_TOKENS * hidden, _NUMBER_BYTES * (taps - 1) * hidden, taps * hidden)
    delta = kind["delta"]
    keys, values = (delta[f"{part}_heads"] * delta[f"{part}_dim"] for part in ("key", "value"))
    state = delta["value_heads"] * delta["key_dim"] * delta["value_dim"]
    added = keys + values + delta["value_heads"]  # key, change and decay of a token
    inputs = 2 * keys + values  # of the convolution
    half = _PAGE_TOKENS // 2
    # Queries and keys with the state, and a token's part in the next one; both with half a page's tokens; convolution.
    macs = 3 * state + 2 * half * delta["value_heads"] * (delta["key_dim"] + delta["value_dim"])
    macs += inputs * delta.get("taps", _DELTA_TAPS)
    return States(
        layers=1,
        page_bytes=_NUMBER_BYTES * (state + _PAGE_TOKENS * (added + inputs)),
        read_bytes=_NUMBER_BYTES * (state + half * added),
        macs_per_token=macs,
    )
