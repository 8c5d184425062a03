"""The fingerprint of keys and values, and the golden bits that its version stands for."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from app.engine.native_runner import NativeRunner
from app.memory.fingerprint import FINGERPRINT_BYTES, NUMERICS_VERSION, fingerprint, packed_digest
from kernels import _native
from tests.kernels.tiny_model import write_random_model

GOLDEN_VERSION = 1
GOLDEN = {
    ("int8", "int16"): "634546aa6902f480",
    ("int8", "int8"): "63f8345b50accd90",
    ("int8", "bf16"): "66d153a2908daf4a",
    ("int8", "fp32"): "c1e7f01ff6096e84",
    ("fp32", "fp32"): "db119b9077011063",
}
"""SHA-256, its first 16 digits, of the probe of a small random model, by the types of activations and pages; so small
that all tiers compute the same. Where this test fails, the engine computes other bits than before: raise
NUMERICS_VERSION and write its golden bits here."""


def probe(folder: Path, **options: Any) -> bytes:
    runner = NativeRunner(
        str(folder),
        threads=2,
        kv_pages=3,
        max_sequences=2,
        **{"max_step_tokens": 64, "max_context_tokens": 64, **options},
    )
    return runner.probe()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), kind="sym_int4")


@pytest.mark.parametrize("tier", [tier for tier in _native.available_tiers() if tier != "amx_int8"])
@pytest.mark.parametrize(("compute_type", "kv_type"), GOLDEN)
def test_the_bits_are_those_of_this_version(
    compute_type: str, kv_type: str, tier: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDOUBT_ISA", tier)
    bits = probe(folder, compute_type=compute_type, kv_type=kv_type)
    assert hashlib.sha256(bits).hexdigest()[:16] == GOLDEN[compute_type, kv_type]
    assert NUMERICS_VERSION == GOLDEN_VERSION


def test_the_probe_depends_on_neither_threads_nor_steps(folder: Path) -> None:
    whole = probe(folder)
    assert len(whole) > 1000
    assert probe(folder, max_step_tokens=7) == whole
    assert probe(folder, max_step_tokens=32) == whole


def test_everything_declared_and_observed_counts() -> None:
    facts: dict[str, str | int] = {"tier": "avx2", "page_tokens": 32}
    one = fingerprint("ab" * 32, facts=facts, probe=b"page")
    assert len(one) == FINGERPRINT_BYTES
    assert fingerprint("ab" * 32, facts=dict(reversed(facts.items())), probe=b"page") == one
    others = [
        fingerprint("cd" * 32, facts=facts, probe=b"page"),
        fingerprint("ab" * 32, facts={**facts, "tier": "scalar"}, probe=b"page"),
        fingerprint("ab" * 32, facts={**facts, "page_tokens": 16}, probe=b"page"),
        fingerprint("ab" * 32, facts=facts, probe=b"pagf"),
    ]
    assert len({one, *others}) == 5


def test_the_digest_is_of_shape_and_weights(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    before = packed_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("other")
    assert packed_digest(tmp_path) == before
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("other")
        assert packed_digest(tmp_path) != before
        before = packed_digest(tmp_path)
    with pytest.raises(FileNotFoundError):
        packed_digest(tmp_path / "missing")
