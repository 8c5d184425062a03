"""Demands are those of packed files and of the comparisons' limits, to the byte."""

import json
from pathlib import Path

import pytest

from app.capacity.demand import KV_TYPES, CapacityError, Windows
from app.commands.plan_inputs import read_demand
from kernels import _native
from quant.conversion.shapes import SHAPES
from quant.conversion.synth import synth
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
    assert wanted.read_bytes(1) + keys * wanted.kv_bytes_per_token("int8") == work["bytes_per_token"]
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
    sizes = [demand(qtype=qtype, group_size=group).read_bytes(1) for qtype, group in (
        ("sym_int4", 128), ("sym_int4", 64), ("asym_int4", 64), ("asym_int4", 32), ("int8", 64), ("bf16", 64),
    )]  # fmt: skip
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_a_token_reads_its_experts_and_a_step_those_that_some_token_takes() -> None:
    model = demand("qwen3-30b-a3b")
    assert model.all_weights == pytest.approx(30.5e9 - 151936 * 2048, rel=0.002)
    assert model.weights == pytest.approx(3.3e9 - 151936 * 2048, rel=0.02)
    assert model.read_bytes(1) == pytest.approx(1.62e9, rel=0.03), "the design's figure"
    experts = model.matrices.expert_bytes
    dense = model.read_bytes(1) - experts * 8 / 128
    for tokens in (1, 8, 32, 512):
        touched = 1 - (1 - 8 / 128) ** tokens
        assert model.read_bytes(tokens) == pytest.approx(dense + experts * touched)
    assert model.weight_bytes > model.read_bytes(1e6)


def test_a_packed_model_with_experts_demands_what_its_shape_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        **SHAPES["qwen3-30b-a3b"], "hidden_size": 128, "vocab_size": 300, "num_hidden_layers": 2, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_attention_heads": 4, "head_dim": 32,
    }  # fmt: skip
    for place in ("quant.conversion.synth.SHAPES", "app.commands.plan_inputs.SHAPES"):
        monkeypatch.setattr(place, {"small": small})
    synth("small", tmp_path / "small", progress=False)
    found, expected = read_demand(str(tmp_path / "small"), None, None), read_demand("small", None, None)
    assert found == expected
    stacks = 2 * 3 * 6 * 64 * 128
    assert (found.matrices.expert_weights, found.matrices.experts, found.matrices.experts_per_token) == (stacks, 6, 2)
    attention, router = 128 * (128 + 2 * 4 * 32) + 128 * 128, 6 * 128
    assert found.matrices.layer_weights == 2 * (attention + router) + stacks // 3


@pytest.mark.parametrize("windows", [(), ((4, 3),), ((1, 1), (6, 2), (100, 1))])
@pytest.mark.parametrize(("before", "tokens"), [(0, 1), (0, 9), (3, 5), (4, 1), (20, 7)])
def test_keys_that_tokens_see_are_counted_layer_by_layer(
    windows: tuple[tuple[int, int], ...], before: int, tokens: int
) -> None:
    keys = Windows(5, windows)
    layers = [window for window, count in windows for _ in range(count)]
    layers += [10**9] * (5 - len(layers))
    seen = [
        [set(range(max(0, place + 1 - window), place + 1)) for place in range(before, before + tokens)]
        for window in layers
    ]
    assert keys.pairs(before, tokens) == pytest.approx(sum(len(each) for layer in seen for each in layer) / 5)
    assert keys.read(before, tokens) == pytest.approx(sum(len(set().union(*layer)) for layer in seen) / 5)
    assert keys.seen(before + tokens) == pytest.approx(sum(len(layer[-1]) for layer in seen) / 5)


def test_layers_of_gemma_4_weigh_by_their_heads() -> None:
    """25 layers of 8 x 256 with a window of 1,024, and 5 of 2 x 512."""
    model = demand("gemma-4-26b-a4b")
    keys, queries = 25 * 2048 + 5 * 1024, 25 * 4096 + 5 * 8192
    assert model.kv_bytes_per_token("int16") == 2 * 2 * keys + 4 * (25 * 8 + 5 * 2)
    assert model.attention_macs_per_key == 2 * queries
    assert model.keys.seen(1000) == 1000
    assert model.keys.seen(10_000) == pytest.approx((25 * 2048 * 1024 + 5 * 1024 * 10_000) / keys)
    assert model.keys.read(9_000, 10) == pytest.approx((25 * 2048 * 1033 + 5 * 1024 * 9_010) / keys)
    full, local = 10 * 9_000 + 55, 10 * 1024
    assert model.keys.pairs(9_000, 10) == pytest.approx((25 * 4096 * local + 5 * 8192 * full) / queries)
    assert model.read_bytes(1) == pytest.approx(2.40e9, rel=0.03), "the design's figure"


def test_every_second_layer_of_gpt_oss_sees_128_keys() -> None:
    model = demand("gpt-oss-20b")
    assert model.windows == ((128, 12),)
    assert (model.keys.seen(100), model.keys.seen(1128)) == (100, (1128 + 128) / 2)
