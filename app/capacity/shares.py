"""The shares of a machine's rates that our engine reaches, by tier and vendor (`shares.toml`).

`python -m bench.capacity_fit` fits them to measurements and writes that file. Does not know models or machines.
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
    "avx512-intel": "avx2-amd",
    "avx512-amd": "avx2-amd",
}
"""The tier and vendor whose shares are used where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One tier's shares of the machine's rates, about 0 to 1; they also cover what the rates do not measure."""

    read: float
    """Share of the read rate while a step reads weights."""
    kv_read: float
    """Share of the read rate while attention reads keys and values."""
    decode: float
    """Share of the multiply-adds in the rows of tokens that decode."""
    prompt: float
    """Share of the multiply-adds in the rows of prompts."""
    attention: float
    """Share of the multiply-adds in attention."""
    narrow: float
    """Factor on the multiply-adds of models below NARROW_HIDDEN: a second int8 term, and small groups."""
    overhead_s: float
    """Overhead per step and layer, beside reading and multiplying."""
    overlap: float
    """Exponent of the overlap: 1: reading and multiplying alternate; the larger, the more they overlap."""


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(SHARES_FILE.read_text(encoding="utf-8"))


def shares_of(tier: str, vendor: str) -> tuple[Shares, str]:
    """Returns the shares and the name of their tier, which is another one where nothing was measured."""
    name = f"{tier}-{vendor}"
    tiers = _table()["tiers"]
    name = name if name in tiers else _STAND_INS.get(name, f"{tier}-intel" if vendor == "amd" else f"{tier}-amd")
    return Shares(**tiers[name]), name


def measured_types() -> tuple[str, ...]:
    """The weight types that the shares were fitted to."""
    return tuple(_table()["measured_types"])


def measured_on() -> str:
    """The measurements that the shares were fitted to, in one sentence."""
    return str(_table()["measured_on"])
