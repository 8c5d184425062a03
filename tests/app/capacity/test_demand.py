"""Demands are those of packed files and of the comparisons' limits, to the byte."""

import json
from pathlib import Path

import pytest

from app.capacity.demand import KV_TYPES, CapacityError
from app.commands.plan_inputs import read_demand
from kernels import _native
from quant.errors import QuantError
from tests.app.capacity.shapes import demand
from tests.kernels.tiny_model import write_random_model

RESULTS = Path(__file__).parents[3] / "bench/results"


@pytest.mark.parametrize(
    ("shape", "qtype", "group_size", "result"),
    [
        ("tinyllama-1.1b", "sym_int4", 64, "compare-1.1b-amx.json"),
        ("llama2-7b", "sym_int4", 64, "compare-7b-zen5.json"),
        ("smollm2-135m", "asym_int4", 32, "compare-embedded-zen5.json"),
    ],
)
def test_a_shape_demands_what_the_packed_file_did(shape: str, qtype: str, group_size: int, result: str) -> None:
    works = json.loads((RESULTS / result).read_text())["works"]
    work = next(each for each in works.values() if each["kind"] == "decode" and each["streams"] == 1)
    keys = work["context_tokens"] + (work["new_tokens"] + 1) / 2
    wanted = demand(shape, qtype, group_size)
    assert wanted.read_bytes + keys * wanted.kv_bytes_per_token("int8") == work["bytes_per_token"]
    assert wanted.weights + keys * wanted.attention_macs_per_key == work["macs_per_token"]


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_token_takes_what_the_engine_s_pages_take(kv_type: str, tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "model", kind="sym_int4")
    page_bytes = _native.Model.kv_page_bytes(str(folder), kv_type)
    found = read_demand(str(folder), None, None)
    assert found.kv_bytes_per_token(kv_type) * _native.PAGE_TOKENS == page_bytes


def test_unknown_types_are_named() -> None:
    with pytest.raises(CapacityError, match="'int5' is not one of int16"):
        demand().kv_bytes_per_token("int5")
    with pytest.raises(QuantError, match="'int5'"):
        demand(qtype="int5")


def test_minima_and_small_groups_take_more_bytes() -> None:
    sizes = [demand(qtype=qtype, group_size=group).read_bytes for qtype, group in (
        ("sym_int4", 128), ("sym_int4", 64), ("asym_int4", 64), ("asym_int4", 32), ("int8", 64), ("bf16", 64),
    )]  # fmt: skip
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)
