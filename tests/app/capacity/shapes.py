from app.capacity.demand import Demand
from app.capacity.machine import Machine
from app.commands.plan_inputs import read_demand


def demand(shape: str = "tinyllama-1.1b", qtype: str = "sym_int4", group_size: int = 64) -> Demand:
    return read_demand(shape, qtype, group_size)


def machine(**changes: object) -> Machine:
    values: dict[str, object] = {
        "name": "m",
        "tier": "avx512_vnni",
        "vendor": "amd",
        "nodes": 1,
        "cores_per_node": 2,
        "memory_bytes": 32 << 30,
        "read_bytes_per_s": 50e9,
        "macs_per_s": 400e9,
        "best_read_bytes_per_s": 50e9,
        "best_macs_per_s": 400e9,
        "instruction": "vnni",
        "is_measured": True,
        "source": "a test",
    }
    return Machine(**{**values, **changes})  # type: ignore[arg-type]
