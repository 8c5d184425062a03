"""A machine's rates and memory: sustained and peak rates of a NUMA node, and the source of the numbers.

Does not measure; does not know models.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from app.capacity.demand import CapacityError

TIERS: Final = ("avx2", "avx_vnni", "avx512", "avx512_vnni", "amx_int8")
VENDORS: Final = ("amd", "intel")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of equal NUMA nodes, each of which has a worker. Rates are those of one node."""

    name: str
    tier: str
    """The instruction set of the kernels on it: one of TIERS."""
    vendor: str
    nodes: int
    cores_per_node: int
    memory_bytes: int
    read_bytes_per_s: float
    """Sustained streaming reads of all cores of a node together."""
    macs_per_s: float
    """Sustained multiply-adds of `instruction`, with all cores busy, so not at a short burst's clock."""
    best_read_bytes_per_s: float
    """Upper bound for any program; equals read_bytes_per_s if measured."""
    best_macs_per_s: float
    """Upper bound for any program with `instruction`; if measured, in a short burst."""
    instruction: str
    """The instruction that macs_per_s counts: "amx_bf16", "vnni" or "maddubs"."""
    is_measured: bool
    source: str
    """Source of the numbers, and which of them are assumptions."""

    def scaled(self, *, read: float = 1.0, compute: float = 1.0, memory: float = 1.0) -> "Machine":
        """Returns the machine with scaled rates, to find the bottleneck."""
        return replace(
            self,
            read_bytes_per_s=self.read_bytes_per_s * read,
            macs_per_s=self.macs_per_s * compute,
            memory_bytes=round(self.memory_bytes * memory),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def machine_from(values: Mapping[str, Any], where: str) -> Machine:
    """Reads and checks a machine that `--save` wrote. Raises CapacityError naming the field and the file."""
    kinds: Mapping[str, type] = {field.name: _KINDS[str(field.type)] for field in fields(Machine)}
    missing = [name for name in kinds if name not in values]
    if missing:
        raise CapacityError(f"{where} lacks {', '.join(missing)}; `redoubt plan --machine this --save FILE` writes all")
    unknown = [name for name in values if name not in kinds]
    if unknown:
        raise CapacityError(f"{where} has the unknown {', '.join(unknown)}; it has {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = values[name]
        is_number = kind in (int, float)
        has_kind = isinstance(value, (int, float) if kind is float else kind)
        if not has_kind or (is_number and (isinstance(value, bool) or not math.isfinite(value) or value <= 0)):
            wanted = {int: "a positive whole number", float: "a positive number", bool: "true or false"}.get(
                kind, "text"
            )
            raise CapacityError(f"{where}: {name} is {value!r}, not {wanted}")
    for name, known in (("tier", TIERS), ("vendor", VENDORS)):
        if values[name] not in known:
            raise CapacityError(f"{where}: {name} {values[name]!r} is not one of {', '.join(known)}")
    return Machine(**values)


_KINDS: Final[Mapping[str, type]] = {
    "<class 'str'>": str, "<class 'int'>": int, "<class 'float'>": float, "<class 'bool'>": bool,
}  # fmt: skip
