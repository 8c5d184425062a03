from app.capacity.demand import Demand, demand_of, matrices_of
from app.capacity.machine import Machine
from quant.conversion.shapes import SHAPES
from quant.sources.model_config import complete_config


def demand(shape: str = "tinyllama-1.1b", qtype: str = "sym_int4", group_size: int = 64) -> Demand:
    config, _ = complete_config(SHAPES[shape], shape)
    return demand_of(config, matrices_of(config, qtype, group_size), shape)


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
