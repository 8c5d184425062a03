"""Layers whose heads have several shapes: their pages, in groups and in one, and what can't be done with these."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.families.description import Attention
from tests.kernels.test_page_groups import CONTEXT, Grouped
from tests.kernels.test_windows import ALL, PLAIN, decoder_of, random_model, tokens
from tests.kernels.tiny_model import F32, Sequences
from tests.sizes import some

PAGE = _native.PAGE_TOKENS
NUMBER_BYTES = 4
LOCAL = replace(PLAIN, window=40)
"""2 key-value heads of 32."""
FULL = replace(PLAIN, kv_heads=1, head_dim=32, value_is_key=True, value_norm=True)
WINDOWS = (
    replace(ALL, window=20, kv_heads=6, head_dim=16),
    FULL,
    replace(PLAIN, window=20),
    replace(PLAIN, kv_heads=3, head_dim=64),
)
LAYERS = (0, 1, 0, 2, 3, 0, 0)
READING = (*WINDOWS, replace(WINDOWS[0], keys_of=2), replace(WINDOWS[3], keys_of=4))
"""Also layers that read the keys of others."""


def page_numbers(*layers: Attention) -> int:
    """Keys' and values' numbers of a page that holds these layers."""
    shapes = [(2 if each.kv_heads is None else each.kv_heads) * (each.head_dim or 32) for each in layers]
    return 2 * PAGE * sum(shapes)


@pytest.mark.parametrize(
    ("full", "windowed", "of_full", "of_windowed"),
    [
        (5, 25, 6, 3),  # Gemma 4 26B-A4B, whose full layers keep half as much: a sixth of their pages is unused
        (10, 50, 10, 5),  # Gemma 4 31B: nothing is
        (1, 5, 2, 1),
        (2, 4, 2, 1),
        (6, 0, 6, 0),
    ],
)
def test_pages_have_as_many_layers_as_fit(
    full: int, windowed: int, of_full: int, of_windowed: int, tmp_path: Path
) -> None:
    kinds = [kind for kind, layers in ((FULL, full), (LOCAL, windowed)) if layers]
    folder = str(random_model(tmp_path / "model", decoder_of(*kinds, layers=(0,) * full + (1,) * windowed)))
    windows = _native.Model.page_group_windows(folder, CONTEXT)
    local_groups = -(-windowed // of_windowed) if windowed else 0
    assert windows == [0] * -(-full // of_full) + [40] * local_groups
    largest = max(page_numbers(*[FULL] * min(full, of_full)), page_numbers(*[LOCAL] * of_windowed))
    assert _native.Model.kv_page_bytes(folder, "fp32", CONTEXT) == largest * NUMBER_BYTES
    in_one = page_numbers(*[FULL] * full, *[LOCAL] * windowed)
    assert _native.Model.kv_page_bytes(folder, "fp32") == in_one * NUMBER_BYTES


def test_layers_of_one_window_and_two_shapes_share_no_page(tmp_path: Path) -> None:
    folder = str(random_model(tmp_path / "model", decoder_of(PLAIN, FULL)))
    assert _native.Model.page_group_windows(folder, CONTEXT) == [0, 0]


def test_layers_that_read_others_keys_have_no_room_in_pages(tmp_path: Path) -> None:
    kinds = (FULL, LOCAL, replace(FULL, keys_of=0, value_is_key=False), replace(LOCAL, keys_of=1))
    alone, shared = (
        str(random_model(tmp_path / str(len(layers)), decoder_of(*kinds[: len(layers)], layers=layers)))
        for layers in ((0, 1), (0, 1, 2, 3))
    )
    assert _native.Model.page_group_windows(shared, CONTEXT) == _native.Model.page_group_windows(alone, CONTEXT)
    for context in (CONTEXT, None):
        of_shared, of_alone = (_native.Model.kv_page_bytes(folder, "int8", context) for folder in (shared, alone))
        assert of_shared == of_alone


class Cleared(Grouped):
    """With zeros where nobody shall see anything."""

    def drop(self, group: int, slot: int, index: int) -> None:
        page = int(self.table[group, slot, index])
        if page >= 0:
            self.table[group, slot, index] = -1
            self.model.clear_page(page)
            self.dropped += 1


@pytest.mark.parametrize(("kv_type", "tier"), some(["fp32", "bf16", "int16", "int8"], _native.available_tiers()))
def test_groups_change_no_bit(tier: str, kv_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOUBT_ISA", tier)
    folder = random_model(tmp_path / "model", decoder_of(*READING, layers=(*LAYERS, 4, 5, 4)))
    ids = tokens(220)
    whole = Sequences(folder, kv_type=kv_type, context=CONTEXT).logits({0: ids})
    assert np.isfinite(whole).all()
    for threads in (1, 2, 5):
        grouped = Cleared(folder, threads=threads, kv_type=kv_type)
        assert len(grouped.windows) > 2
        edges = [0, 5, 90, 91, 128, 180, *range(206, 221)]
        parts = [grouped.logits({1: ids[begin:end]}) for begin, end in pairwise(edges)]
        assert grouped.dropped > 10
        assert np.array_equal(np.concatenate(parts), whole)
        first = grouped.logits({2: tokens(70, 1), 0: ids[:100]})[70:]
        second = grouped.logits({0: ids[100:], 2: tokens(9, 2)})[:120]
        assert np.array_equal(np.concatenate([first, second]), whole)


def test_long_contexts_are_split_over_threads(tmp_path: Path) -> None:
    folder = random_model(tmp_path / "model", decoder_of(FULL, replace(LOCAL, window=513), replace(ALL, window=40)))
    ids = tokens(1560)
    whole = Sequences(folder, sequences=1, context=1600).logits({0: ids})
    for threads in (1, 5):
        grouped = Cleared(folder, sequences=1, context=1600, threads=threads)
        edges = [0, 1100, 1101, 1530, *range(1531, 1561)]
        parts = [grouped.logits({0: ids[begin:end]}) for begin, end in pairwise(edges)]
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("compute_type", ["int8", "bf16"])
@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
def test_prompts_in_bf16_are_as_near_as_the_numbers(
    kv_type: str, compute_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of up to 128 are computed so, larger ones as in answers; a few times the step of int8."""
    wide = replace(PLAIN, kv_heads=3, head_dim=144)
    folder = random_model(tmp_path / "model", decoder_of(FULL, wide, LOCAL))
    options: dict[str, Any] = {"kv_type": kv_type, "compute_type": compute_type}
    monkeypatch.setenv("REDOUBT_ISA", "scalar")
    ids = tokens(100)

    def logits(prompt_compute_type: str) -> F32:
        model = Sequences(folder, sequences=1, prompt_compute_type=prompt_compute_type, **options)
        return model.logits({0: ids})

    exact = Sequences(folder, sequences=1).logits({0: ids})
    for each in (logits("same"), logits("bf16")):
        assert np.linalg.norm(each - exact) < 8 / 127 * np.linalg.norm(exact)


def after(model: "_native.Model", page: int) -> F32:
    """Logits of a token after that page."""
    model.page_table[0, :2] = [page, 3]
    arrays = [np.array([number], np.int32) for number in (5, PAGE, 0, 1, PAGE)]
    return model.logits(*arrays)


@pytest.mark.parametrize("kv_type", ["fp32", "bf16", "int16", "int8"])
def test_a_page_of_all_layers_can_be_taken_out_and_put_back(kv_type: str, tmp_path: Path) -> None:
    folder = random_model(tmp_path / "model", decoder_of(*READING, layers=(*LAYERS, 4, 5, 4)))
    model = Sequences(folder, sequences=1, context=4 * PAGE, kv_type=kv_type).model
    model.page_table[0] = [0, 3, 2, 1]
    ids, positions = np.array(tokens(PAGE), np.int32), np.arange(PAGE, dtype=np.int32)
    model.logits(ids, positions, *(np.array([number], np.int32) for number in (0, PAGE, 0)))
    page = np.zeros(model.gathered_page_bytes, np.uint8)
    model.gather_page(0, page)
    right = after(model, 0)
    assert not np.array_equal(after(model, 1), right), "the test shows nothing"
    model.scatter_page(1, page)
    model.copy_page(1, 2)
    assert np.array_equal(after(model, 1), right)
    assert np.array_equal(after(model, 2), right)


def test_a_page_of_some_layers_is_neither_taken_out_nor_moved(tmp_path: Path) -> None:
    model = Grouped(random_model(tmp_path / "model", decoder_of(FULL, LOCAL))).model
    page = np.zeros(model.gathered_page_bytes, np.uint8)
    for call in (model.gather_page, model.scatter_page):
        with pytest.raises(ValueError, match="page groups: where their heads differ, a page can't be taken out"):
            call(0, page)
    with pytest.raises(ValueError, match="page groups: a key can't be moved"):
        model.copy_page_turned(0, 1, 5)
