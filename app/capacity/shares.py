"""How much of a machine's rates our engine reaches, by tier and vendor (`shares.toml`).

Fitted to measurements by `python -m bench.capacity_fit`, which writes that file. Does not know models or machines.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

SHARES_FILE: Final = Path(__file__).with_name("shares.toml")
_STAND_INS: Final[Mapping[str, str]] = {
    "avx2-intel": "avx2-amd",
    "avx_vnni-intel": "avx2-amd",
    "avx_vnni-amd": "avx2-amd",
}
"""Whose shares are used where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One tier's. Shares are of the machine's rates, about 0 to 1; they also cover what the rates do not measure."""

    read: float
    """Of the read rate, while a step reads weights."""
    kv_read: float
    """Of the read rate, while attention reads keys and values."""
    decode: float
    """Of the multiply-adds, in the rows of tokens that decode."""
    prompt: float
    """Of the multiply-adds, in the rows of prompts."""
    attention: float
    """Of the multiply-adds, in attention."""
    narrow: float
    """How many times as much a model below NARROW_HIDDEN multiplies: its second int8 term, and its small groups."""
    overhead_s: float
    """Of a step and layer, beside reading and multiplying."""
    overlap: float
    """1: reading and multiplying take turns; the larger, the more they overlap."""


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(SHARES_FILE.read_text(encoding="utf-8"))


def shares_of(tier: str, vendor: str) -> tuple[Shares, str]:
    """A tier's shares, and the name of whose they are: another tier's where nothing was measured."""
    name = f"{tier}-{vendor}"
    tiers = _table()["tiers"]
    name = name if name in tiers else _STAND_INS.get(name, f"{tier}-intel" if vendor == "amd" else f"{tier}-amd")
    return Shares(**tiers[name]), name


def measured_types() -> tuple[str, ...]:
    """The types of weights that the shares were fitted to."""
    return tuple(_table()["measured_types"])


def measured_on() -> str:
    """What the shares were fitted to, in one sentence."""
    return str(_table()["measured_on"])
