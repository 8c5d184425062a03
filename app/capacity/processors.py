"""The table of processors (`processors.toml`): machines on the market, from vendors' published data.

A machine's rates are computed: channels times transfers for reads, cores times clock times multiply-adds per cycle for
compute. They were not measured; each `source` says so.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from app.capacity.demand import CapacityError
from app.capacity.machine import Machine

_TABLE: Final = Path(__file__).with_name("processors.toml")
_BYTES_PER_TRANSFER: Final = 8
_SOCKETS: Final = re.compile(r"(?:(\d)x-?)?(.+)")


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


def processor_names() -> tuple[str, ...]:
    """All names in the table's order."""
    return tuple(_table()["processors"])


def most_sockets(name: str) -> int:
    """The most sockets of a machine with this processor of the table."""
    return int(_table()["processors"][name]["sockets"])


def table_machine(name: str, memory_bytes: int | None = None) -> Machine:
    """Returns a machine of the table: "epyc-9354", or "2x-epyc-9354" with two sockets. A socket is one NUMA node.

    memory_bytes: of the whole machine; None: one module of the table's size in each channel. Raises CapacityError for
    an unknown name, listing all.
    """
    matched = _SOCKETS.fullmatch(name.lower())
    sockets, processor = (int(matched[1] or 1), matched[2]) if matched else (1, name)
    table = _table()
    if processor not in table["processors"]:
        raise CapacityError(f"machine {name!r} is not one of {', '.join(processor_names())}, this, or a file")
    row = table["processors"][processor]
    if not 1 <= sockets <= row["sockets"]:
        raise CapacityError(f"{processor} fits into machines of 1 to {row['sockets']} sockets, not {sockets}")
    core = table["cores"][row["core"]]
    theoretical = row["channels"] * row["megatransfers_per_s"] * 1e6 * _BYTES_PER_TRANSFER
    macs_per_ghz = row["cores"] * core["macs_per_cycle"] * 1e9
    assumed = [*table["assumed"].values(), *row.get("assumed", [])]
    return Machine(
        name=f"{sockets} x {row['title']}" if sockets > 1 else row["title"],
        tier=core["tier"],
        vendor=core["vendor"],
        nodes=sockets,
        cores_per_node=row["cores"],
        memory_bytes=memory_bytes or sockets * row["channels"] * table["module_bytes"],
        read_bytes_per_s=theoretical * table["read_share"],
        macs_per_s=macs_per_ghz * row["base_ghz"],
        best_read_bytes_per_s=theoretical,
        best_macs_per_s=macs_per_ghz * row["peak_ghz"],
        instruction=core["instruction"],
        is_measured=False,
        source=f"{row['source']}; {core['source']}. Assumed: {'; '.join(assumed)}",
    )
