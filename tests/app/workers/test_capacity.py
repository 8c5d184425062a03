"""What a worker reports of its model is what the packed file has, whether it is a folder or sealed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from app.capacity.heads import MixedHeads
from app.commands.plan_inputs import read_demand
from app.messages.capacity import WorkerCapacity
from app.sealing.seal import seal
from app.sealing.sealed_model import SealedModel
from app.settings.worker import EngineSettings
from app.workers.capacity import worker_capacity
from app.workers.packed_header import read_header
from app.workers.warm_up import WarmUp
from quant.families.description import Attention, Decoder, Experts, Layer, Mlp
from tests.app.sealing.conftest import KEY
from tests.kernels.tiny_model import described_tensors, write_described, write_random_model

WARM = WarmUp(speed=100.0, prompt_tokens=64, prompt_s=0.5, token_s=0.02)


@pytest.mark.parametrize("kind", ["sym_int4", "int8", "fp32"])
def test_the_sizes_are_the_packed_file_s(tmp_path: Path, kind: str) -> None:
    folder = write_random_model(tmp_path / "model", kind=kind)  # type: ignore[arg-type]
    found = worker_capacity(folder, EngineSettings(kv_type="int8"), WARM, kv_pages=7)
    assert found is not None
    wanted = read_demand(str(folder), None, None)
    sizes = asdict(wanted.matrices)
    del sizes["type_name"]
    assert {name: getattr(found, name) for name in sizes} == sizes
    shape = ("layers", "hidden", "heads", "kv_heads", "head_dim")
    assert [getattr(found, name) for name in shape] == [getattr(wanted, name) for name in shape]
    assert (found.kv_type, found.kv_tokens) == ("int8", 7 * 32)
    assert (found.prompt_tokens, found.prompt_s, found.token_s) == (64, 0.5, 0.02)
    assert found.memory_left_bytes > 0
    assert WorkerCapacity.from_wire(found.to_wire()) == found


def test_experts_and_windows_are_the_description_s(tmp_path: Path) -> None:
    whole, part = (Layer(Attention(0.25, rope=None, window=window), experts=Experts(6, 2, 64)) for window in (0, 16))
    decoder = Decoder(99, 64, 512, heads=4, kv_heads=2, head_dim=16, kinds=(whole, part), layers=(1, 0, 1))
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder), "sym_int4")
    found = worker_capacity(folder, EngineSettings(), WARM, kv_pages=7, keeps_windows=True)
    assert found is not None
    wanted = read_demand(str(folder), None, None)
    sizes = asdict(wanted.matrices)
    del sizes["type_name"]
    assert {name: getattr(found, name) for name in sizes} == sizes
    assert (found.experts, found.experts_per_token, found.keeps_windows) == (6, 2, True)
    assert found.windows == wanted.windows == ((16, 2),)
    assert WorkerCapacity.from_wire(found.to_wire()) == found
    header = read_header(folder)
    assert header is not None
    assert header.expert_reads is not None
    taken = 3 * 2 * 3 * 64 * 64
    assert header.expert_reads.share == pytest.approx(taken / wanted.weights)


def test_heads_that_differ_are_the_description_s(tmp_path: Path) -> None:
    local, full = Attention(0.25, rope=None, window=16), Attention(0.25, rope=None, kv_heads=1, head_dim=32)
    kinds = tuple(Layer(each, Mlp(96)) for each in (local, full))
    decoder = Decoder(99, 64, 512, heads=4, kv_heads=2, head_dim=16, kinds=kinds, layers=(0, 0, 1))
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder))
    found = worker_capacity(folder, EngineSettings(), WARM, kv_pages=7)
    assert found is not None
    sent = json.loads(json.dumps(found.to_wire()))
    assert MixedHeads.of(sent["mixed"]) == read_demand(str(folder), None, None).mixed
    assert MixedHeads.of(found.mixed) == MixedHeads(2 * 64 + 128, 2 * 32 + 32, 5, ((16, 128, 64),))


def test_a_sealed_model_reports_the_same(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "model")
    seal(folder, tmp_path / "sealed", KEY, progress=False)
    plain, sealed = (
        worker_capacity(files, EngineSettings(), WARM, kv_pages=7)
        for files in (folder, SealedModel(tmp_path / "sealed", KEY))
    )
    assert plain is not None
    assert sealed is not None
    assert replace(sealed, memory_left_bytes=plain.memory_left_bytes) == plain


def test_without_weights_or_times_there_is_nothing_to_report(tmp_path: Path) -> None:
    assert worker_capacity(tmp_path, EngineSettings(), WARM, kv_pages=7) is None
    folder = write_random_model(tmp_path / "model")
    no_tokens = WarmUp(speed=1.0, prompt_tokens=64, prompt_s=0.5, token_s=0.0)
    assert worker_capacity(folder, EngineSettings(), no_tokens, kv_pages=7) is None
    assert WorkerCapacity.from_wire(None) is None
