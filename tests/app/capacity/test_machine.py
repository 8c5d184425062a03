import json
from pathlib import Path
from typing import Any

import pytest

from app.capacity.demand import CapacityError
from app.capacity.machine import machine_from
from app.capacity.processors import most_sockets, processor_names, table_machine
from app.capacity.shares import shares_of
from tests.app.capacity.shapes import machine

RESULTS = Path(__file__).parents[3] / "bench/results"


def test_a_file_gives_back_the_machine() -> None:
    assert machine_from(json.loads(json.dumps(machine().to_dict())), "m.json") == machine()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tier": None}, "m.json: tier is None, not text"),
        ({"tier": "mmx"}, "m.json: tier 'mmx' is not one of avx2"),
        ({"nodes": 1.5}, "nodes is 1.5, not a positive whole number"),
        ({"nodes": True}, "nodes is True"),
        ({"read_bytes_per_s": float("nan")}, "read_bytes_per_s is nan, not a positive number"),
        ({"macs_per_s": 0}, "macs_per_s is 0, not a positive number"),
        ({"speed": 3}, "has the unknown speed"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CapacityError, match=message):
        machine_from({**machine().to_dict(), **changes}, "m.json")


def test_missing_fields_are_named() -> None:
    values = machine().to_dict()
    del values["macs_per_s"], values["tier"]
    with pytest.raises(CapacityError, match=r"m\.json lacks tier, macs_per_s"):
        machine_from(values, "m.json")


@pytest.mark.parametrize("name", processor_names())
def test_every_processor_makes_a_machine_with_a_source_and_shares(name: str) -> None:
    one = table_machine(name)
    assert one.best_read_bytes_per_s > one.read_bytes_per_s
    assert one.best_macs_per_s > one.macs_per_s
    assert "http" in one.source
    assert "Assumed" in one.source
    assert shares_of(one.tier, one.vendor)[1] == f"{one.tier}-{one.vendor}"
    if most_sockets(name) > 1:
        two = table_machine(f"2x-{name}")
        assert (two.nodes, two.read_bytes_per_s, two.memory_bytes) == (2, one.read_bytes_per_s, 2 * one.memory_bytes)


def test_the_table_s_rates_are_channels_times_transfers_and_cores_times_clock() -> None:
    found = table_machine("epyc-9354")
    assert found.best_read_bytes_per_s == pytest.approx(460.8e9)
    assert found.macs_per_s == pytest.approx(32 * 3.25e9 * 64)


@pytest.mark.parametrize("name", ["epyc-1", "", "x", "-", "3x-epyc-9354", "0x-epyc-9354", "2x-ryzen-9-7950x"])
def test_an_unknown_machine_is_refused(name: str) -> None:
    with pytest.raises(CapacityError, match=r"is not one of epyc-7543, .*, this, or a file|fits into machines of 1 to"):
        table_machine(name)


def test_a_tier_without_measurements_takes_another_one_s_shares_and_says_so() -> None:
    assert shares_of("avx2", "intel") == shares_of("avx2", "amd")
    assert shares_of("avx_vnni", "intel")[1] == "avx2-amd"
    assert shares_of("amx_int8", "amd")[1] == "amx_int8-intel"


@pytest.mark.parametrize(
    ("result", "processor"),
    [
        ("compare-1.1b-zen3-3.json", "epyc-7763"),
        ("compare-1.1b.json", "epyc-9654"),
        ("compare-1.1b-zen5.json", "epyc-9755"),
        ("compare-1.1b-amx.json", "xeon-platinum-8480"),
    ],
)
def test_the_table_s_cores_multiply_as_measured_ones_do(result: str, processor: str) -> None:
    limits = json.loads((RESULTS / result).read_text())["limits"]
    found = table_machine(processor)
    assert limits["instruction"] == found.instruction
    a_core = limits["macs_per_s"] / 2
    # Two cores of a shared machine run at a clock between the base and the fastest of the family.
    assert found.macs_per_s / found.cores_per_node < a_core < 1.1 * found.best_macs_per_s / found.cores_per_node
    assert limits["read_bytes_per_s"] < found.read_bytes_per_s
