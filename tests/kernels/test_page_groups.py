"""Layers with windows in page groups: the same bits, although pages that nobody sees are gone."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kernels import _native
from tests.kernels.test_windows import ALL, HEAD_DIM, KV_HEADS, PLAIN, decoder_of, random_model, tokens
from tests.kernels.tiny_model import F32, Sequences
from tests.sizes import some

PAGE = _native.PAGE_TOKENS
CONTEXT = 256
WINDOWS = (replace(ALL, window=20), PLAIN, replace(PLAIN, window=64, sinks=True), replace(PLAIN, window=1))
LAYERS = (0, 1, 0, 2, 3, 0, 0)


@pytest.mark.parametrize(
    ("full", "windowed", "slots", "groups"),
    [
        (12, 12, 12, 2),  # gpt-oss-20b
        (4, 22, 4, 7),  # Gemma 3 1B: 2 slots in its last group are nobody's
        (3, 15, 3, 6),  # Gemma 3 270M
        (10, 52, 10, 7),  # Gemma 3 27B
        (13, 13, 13, 2),  # Gemma 2 2B
        (1, 5, 1, 6),
        (0, 6, 6, 1),
        (6, 0, 6, 1),
    ],
)
def test_pages_are_large_and_waste_little(full: int, windowed: int, slots: int, groups: int, tmp_path: Path) -> None:
    kinds = [kind for kind, layers in ((PLAIN, full), (replace(PLAIN, window=40), windowed)) if layers]
    layers = (0,) * (full or windowed) + (1,) * (windowed if full else 0)
    folder = str(random_model(tmp_path / "model", decoder_of(*kinds, layers=layers)))
    windows = _native.Model.page_group_windows(folder, CONTEXT)
    assert windows == [0] * -(-full // slots) + [40] * -(-windowed // slots)
    assert len(windows) == groups
    slot_bytes = 2 * PAGE * HEAD_DIM * KV_HEADS * 4
    assert _native.Model.kv_page_bytes(folder, "fp32", CONTEXT) == slots * slot_bytes
    assert _native.Model.kv_page_bytes(folder, "fp32") == (full + windowed) * slot_bytes


def test_a_window_that_no_context_exceeds_is_none(tmp_path: Path) -> None:
    kinds = (PLAIN, replace(PLAIN, window=40), replace(PLAIN, window=100))
    folder = str(random_model(tmp_path / "model", decoder_of(*kinds)))
    assert _native.Model.page_group_windows(folder, 256) == [0, 100, 40]
    assert _native.Model.page_group_windows(folder, 100) == [0, 0, 40]
    assert _native.Model.page_group_windows(folder, 40) == [0]


class Grouped:
    """A model with page groups and sequences whose unseen pages are gone: not in the table, and all NaN."""

    def __init__(
        self,
        folder: Path,
        *,
        sequences: int = 3,
        context: int = CONTEXT,
        threads: int = 1,
        kv_type: str = "fp32",
    ) -> None:
        self.windows = _native.Model.page_group_windows(str(folder), context)
        per_sequence = context // PAGE
        self.model = _native.Model(
            str(folder),
            threads=threads,
            compute_type="fp32",
            kv_type=kv_type,
            kv_pages=len(self.windows) * sequences * per_sequence,
            max_sequences=sequences,
            max_step_tokens=context * sequences,
            max_context_tokens=context,
            page_groups=True,
        )
        assert self.model.group_windows == self.windows
        self.table = self.model.page_table
        assert self.table.shape == (len(self.windows), sequences, per_sequence)
        self.table[:] = np.random.default_rng(5).permutation(self.table.size).reshape(self.table.shape)
        self.lengths = [0] * sequences
        self.dropped = 0

    def logits(self, chunks: dict[int, list[int]]) -> F32:
        """Logits of a step that appends each chunk to the sequence of that slot, by what the tokens can see."""
        for slot in chunks:
            for group, window in enumerate(self.windows):
                first = max(self.lengths[slot] + 1 - window, 0) // PAGE if window else 0
                for index in range(first):
                    self.drop(group, slot, index)
        ids = np.array([token for chunk in chunks.values() for token in chunk], np.int32)
        begins = [self.lengths[slot] for slot in chunks]
        counts = [len(chunk) for chunk in chunks.values()]
        positions = np.concatenate([begin + np.arange(count) for begin, count in zip(begins, counts, strict=True)])
        for slot, chunk in chunks.items():
            self.lengths[slot] += len(chunk)
        slots, lengths, before = (np.array(each, np.int32) for each in (list(chunks), counts, begins))
        return self.model.logits(ids, positions.astype(np.int32), slots, lengths, before)

    def drop(self, group: int, slot: int, index: int) -> None:
        page = int(self.table[group, slot, index])
        if page < 0:
            return
        self.table[group, slot, index] = -1
        gathered = np.empty(self.model.gathered_page_bytes, np.uint8)
        self.model.gather_page(page, gathered)
        words = gathered.view(np.uint32)
        at, runs = 2, 2 * int(words[1])  # kernels/model/kv_page.h
        for _ in range(runs):
            size = int(words[at + 1]) // 4
            words[at + 2 : at + 2 + size] = 0xFFFFFFFF  # NaN, or -1 with a scale of NaN
            at += 2 + size
        self.model.scatter_page(page, gathered)
        self.dropped += 1


@pytest.mark.parametrize(("kv_type", "tier"), some(["fp32", "bf16", "int16", "int8"], _native.available_tiers()))
def test_dropped_pages_change_no_bit(tier: str, kv_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOUBT_ISA", tier)
    folder = random_model(tmp_path / "model", decoder_of(*WINDOWS, layers=LAYERS))
    ids = tokens(220)
    whole = Sequences(folder, kv_type=kv_type, context=CONTEXT).logits({0: ids})
    assert np.isfinite(whole).all()
    for threads in (1, 3):
        grouped = Grouped(folder, threads=threads, kv_type=kv_type)
        assert len(set(grouped.windows)) == 4
        edges = [0, 5, 90, 91, 128, *range(180, 221)]
        parts = [grouped.logits({1: ids[begin:end]}) for begin, end in pairwise(edges)]
        assert grouped.dropped > 20
        assert np.array_equal(np.concatenate(parts), whole)
        # Beside other sequences, whose rows of the tables are others'.
        first = grouped.logits({2: tokens(70, 1), 0: ids[:100]})[70:]
        second = grouped.logits({0: ids[100:], 2: tokens(9, 2)})[:120]
        assert np.array_equal(np.concatenate([first, second]), whole)


def test_long_contexts_are_split_over_threads(tmp_path: Path) -> None:
    """More keys than a partition has, before the windows and in them."""
    kinds = (replace(ALL, window=40), PLAIN, replace(PLAIN, window=513))
    folder = random_model(tmp_path / "model", decoder_of(*kinds))
    ids = tokens(1560)
    whole = Sequences(folder, sequences=1, context=1600).logits({0: ids})
    for threads in (1, 3):
        grouped = Grouped(folder, sequences=1, context=1600, threads=threads)
        edges = [0, 1100, 1101, 1530, *range(1531, 1561)]
        parts = [grouped.logits({0: ids[begin:end]}) for begin, end in pairwise(edges)]
        assert np.array_equal(np.concatenate(parts), whole)


def test_a_page_that_is_seen_must_be_there(tmp_path: Path) -> None:
    grouped = Grouped(random_model(tmp_path / "model", decoder_of(PLAIN, replace(PLAIN, window=34))))
    grouped.logits({0: tokens(95)})
    grouped.table[1, 0, 0] = -1  # tokens 62 .. 95 are seen
    grouped.table[1, 0, 1] = -1
    with pytest.raises(ValueError, match="page_table: group 1, slot 0, page 1 is -1, not in 0"):
        grouped.logits({0: [1]})


def test_keys_of_groups_are_not_moved(tmp_path: Path) -> None:
    grouped = Grouped(random_model(tmp_path / "model", decoder_of(PLAIN, replace(PLAIN, window=34))))
    with pytest.raises(ValueError, match="page groups"):
        grouped.model.copy_page_turned(0, 1, 32)


def test_without_page_groups_all_layers_share_a_page(tmp_path: Path) -> None:
    folder = random_model(tmp_path / "model", decoder_of(*WINDOWS, layers=LAYERS))
    model = Sequences(folder).model
    assert model.group_windows == [0]
    assert model.page_table.ndim == 2
