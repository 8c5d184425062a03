"""How large a model's steps are, and how it keeps its pages."""

from pathlib import Path
from typing import Any

import pytest

from app.settings.applications import ModelApplicationSettings
from app.settings.worker import EngineSettings
from app.workers import load
from app.workers.load import has_page_groups, step_tokens_of
from kernels import _native
from quant.families.description import Attention, Decoder, Experts, Layer
from tests.kernels.tiny_model import described_tensors, write_described, write_random_model


def model(folder: Path, count: int, per_token: int) -> str:
    layer = Layer(Attention(0.25, rope=None), experts=Experts(count, per_token, 32))
    decoder = Decoder(99, 64, 512, heads=4, kv_heads=2, head_dim=16, kinds=(layer,), layers=(0,))
    return str(write_described(folder, decoder, {}, described_tensors(decoder), "sym_int4"))


@pytest.mark.parametrize(
    ("count", "per_token", "tokens"), [(4, 2, 512), (32, 2, 1024), (30, 2, 960), (64, 1, 2048), (4, 4, 512)]
)
def test_each_expert_gets_rows_within_bounds(tmp_path: Path, count: int, per_token: int, tokens: int) -> None:
    folder = model(tmp_path / "model", count, per_token)
    assert _native.Model.experts(folder) == (count, per_token)
    assert step_tokens_of(EngineSettings(), folder, threads=2, slots=32) == tokens
    assert step_tokens_of(EngineSettings(max_step_tokens=700), folder, threads=2, slots=32) == 700


def test_a_model_without_experts_has_the_usual_steps(tmp_path: Path) -> None:
    folder = str(write_random_model(tmp_path / "model"))
    assert _native.Model.experts(folder) == (0, 0)
    assert step_tokens_of(EngineSettings(), folder, threads=2, slots=32) == 512


def test_steps_are_smaller_where_they_would_take_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "model", 64, 1)
    sizes = {tokens: activation_bytes(folder, tokens) for tokens in (512, 1024, 2048)}
    assert sizes[512] < sizes[1024] < sizes[2048]
    for most, tokens in ((sizes[2048], 2048), (sizes[2048] - 1, 1024), (sizes[1024] - 1, 512), (0, 512)):
        monkeypatch.setattr(load, "_MOST_ACTIVATION_BYTES", most)
        assert step_tokens_of(EngineSettings(), folder, threads=2, slots=32) == tokens


def test_activations_are_known_before_loading(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", 8, 2)
    loaded = _native.Model(folder, threads=2, kv_pages=1, max_sequences=34, max_step_tokens=600, max_context_tokens=32)
    assert loaded.resident_bytes()["activations"] == activation_bytes(folder, 600)


def activation_bytes(folder: str, tokens: int) -> int:
    return _native.Model.activation_bytes(folder, threads=2, max_sequences=34, max_step_tokens=tokens)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"memory": {"folder": "/somewhere"}}, False),
        ({"model": {"folder": "models/m", "on_overflow": "shift"}}, False),
    ],
)
def test_pages_are_in_groups_unless_they_are_saved_or_contexts_shifted(changes: dict[str, Any], expected: bool) -> None:
    settings = ModelApplicationSettings.model_validate({"model": {"folder": "models/m"}, **changes})
    assert has_page_groups(settings) is expected
