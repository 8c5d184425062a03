"""Keys moved to later positions: as if they had been computed there, and values as they were."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.families.description import Attention, Layer, Mlp
from tests.kernels.test_decoder import BASE, MIXTURES
from tests.kernels.tiny_model import F32, LLAMA, described_tensors, write_described, write_random_model

PAGE = _native.PAGE_TOKENS
TOLERANCE = {"fp32": 1e-4, "int16": 5e-3, "bf16": 0.05, "int8": 0.15}
"""Of logits with a spread of about 1; once more rounded."""
ALIBI = Attention(0.25, rope=None, slopes=(0.5, 0.25, 0.125, 0.0625))
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
}


class Pages:
    """A model, and what its next token is after the page of slot 0."""

    def __init__(self, folder: Path, kv_type: str) -> None:
        self.model = _native.Model(
            str(folder),
            threads=1,
            compute_type="fp32",
            kv_type=kv_type,
            kv_pages=4,
            max_sequences=1,
            max_step_tokens=PAGE,
            max_context_tokens=2 * PAGE,
        )

    def write(self, page: int, first_position: int) -> None:
        tokens = np.random.default_rng(1).integers(0, 96, PAGE).astype(np.int32)
        self._logits(page, tokens, first_position, context=0)

    def after(self, page: int, position: int) -> F32:
        return self._logits(page, np.array([5], np.int32), position, context=PAGE)

    def _logits(self, page: int, tokens: Any, first_position: int, context: int) -> F32:
        self.model.page_table[0] = [page, 3]
        count, zero = len(tokens), np.zeros(1, np.int32)
        positions = np.arange(first_position, first_position + count, dtype=np.int32)
        return self.model.logits(tokens, positions, zero, np.array([count], np.int32), np.array([context], np.int32))


@pytest.mark.parametrize("kv_type", list(TOLERANCE))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_turned_page_is_the_page_computed_later(family: str, kv_type: str, tmp_path: Path) -> None:
    pages = Pages(write_random_model(tmp_path, {**LLAMA, **FAMILIES[family]}), kv_type)
    pages.write(0, 0)
    for moved in (1, 500, 100_000):
        pages.write(1, moved)
        pages.model.copy_page_turned(0, 2, moved)
        computed, turned = pages.after(1, moved + PAGE), pages.after(2, moved + PAGE)
        unmoved = pages.after(0, moved + PAGE)
        assert np.abs(turned - computed).max() < TOLERANCE[kv_type]
        assert np.abs(turned - computed).max() < 0.2 * np.abs(unmoved - computed).max(), "the test shows nothing"


@pytest.mark.parametrize("mixture", [name for name, decoder in MIXTURES.items() if not decoder.learned_positions])
def test_each_layer_turns_by_its_own_rope(mixture: str, tmp_path: Path) -> None:
    """Several ropes, parts of heads, and layers without one, whose keys stay."""
    mixed = MIXTURES[mixture]
    # With a temperature hidden states depend on absolute positions.
    kinds = [replace(k, attention=replace(k.attention, temperature_scale=0.0)) for k in mixed.kinds if k.attention]
    decoder = replace(mixed, kinds=tuple(kinds))
    pages = Pages(write_described(tmp_path, decoder, {}, described_tensors(decoder)), "fp32")
    pages.write(0, 0)
    for moved in (1, 500):
        pages.write(1, moved)
        pages.model.copy_page_turned(0, 2, moved)
        computed, turned = pages.after(1, moved + PAGE), pages.after(2, moved + PAGE)
        assert np.abs(turned - computed).max() < TOLERANCE["fp32"]


@pytest.mark.parametrize("kv_type", list(TOLERANCE))
def test_with_alibi_a_page_is_the_same_wherever_it_is(kv_type: str, tmp_path: Path) -> None:
    """Keys have no position: what an endless chat keeps gives the bits of a text that had it there from the start."""
    decoder = replace(BASE, kinds=(Layer(ALIBI, mlp=Mlp(96)),))
    pages = Pages(write_described(tmp_path, decoder, {}, described_tensors(decoder)), kv_type)
    assert pages.model.has_relative_positions
    pages.write(0, 0)
    for moved in (1, 500, 100_000):
        pages.write(1, moved)
        pages.model.copy_page_turned(0, 2, moved)
        computed, turned = pages.after(1, moved + PAGE), pages.after(2, moved + PAGE)
        assert np.array_equal(turned, computed)
        assert np.array_equal(turned, pages.after(0, PAGE))


@pytest.mark.parametrize("kv_type", ["fp32", "bf16"])
def test_turned_by_nothing_it_is_a_copy(kv_type: str, tmp_path: Path) -> None:
    pages = Pages(write_random_model(tmp_path), kv_type)
    pages.write(0, 0)
    pages.model.copy_page_turned(0, 2, 0)
    assert np.array_equal(pages.after(0, PAGE), pages.after(2, PAGE))


def test_what_can_not_be_turned_is_refused(tmp_path: Path) -> None:
    pages = Pages(write_random_model(tmp_path / "llama"), "fp32")
    assert pages.model.has_relative_positions
    with pytest.raises(ValueError, match="page 4 is not in"):
        pages.model.copy_page_turned(0, 4, 1)
    dynamic = {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    pages = Pages(write_random_model(tmp_path / "dynamic", dynamic), "fp32")
    assert not pages.model.has_relative_positions
    with pytest.raises(ValueError, match="dynamic RoPE"):
        pages.model.copy_page_turned(0, 1, 1)
    learned = MIXTURES["learned positions"]
    pages = Pages(write_described(tmp_path / "learned", learned, {}, described_tensors(learned)), "fp32")
    assert not pages.model.has_relative_positions
    with pytest.raises(ValueError, match="learned ones are in keys and values"):
        pages.model.copy_page_turned(0, 1, 1)
    pages.write(0, learned.max_positions - PAGE)
    with pytest.raises(ValueError, match="positions: 512 is not below 512, and this model's are learned"):
        pages.after(0, learned.max_positions)
