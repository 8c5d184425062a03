"""The few state pages of a text that is computed by itself, and whole texts through them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.packed.native_model import STEP_TOKENS, NativeModel
from quant.packed.state_table import MOST_PAGES, NO_PAGE, TextStates, needed_pages
from tests.kernels.hybrid_model import tokens, write_hybrid
from tests.kernels.tiny_model import F32, Sequences

OPTIONS: dict[str, Any] = {"threads": 2, "compute_type": "fp32", "kv_type": "fp32"}


@pytest.mark.parametrize(
    ("begin", "end", "needed"),
    [
        (0, 1, [0]), (0, 32, [0]), (0, 33, [0, 1]), (0, 96, [2]), (0, 97, [2, 3]), (5, 6, [0]), (31, 33, [0, 1]),
        (32, 33, [0, 1]), (32, 64, [0, 1]), (40, 41, [0, 1]), (40, 200, [0, 1, 5, 6]), (64, 320, [1, 9]),
    ],
)  # fmt: skip
def test_needed_pages(begin: int, end: int, needed: list[int]) -> None:
    assert needed_pages(begin, end) == needed


def test_a_text_of_any_length_needs_few_pages() -> None:
    states, row = TextStates(range(10, 10 + MOST_PAGES)), np.zeros(64, np.int32)
    rng, begin, before = np.random.default_rng(0), 0, row.copy()
    while begin < 1900:
        end = begin + int(rng.integers(1, 100))
        states.fill(row, begin, end)
        needed = needed_pages(begin, end)
        assert [i for i, page in enumerate(row) if page != NO_PAGE] == needed
        assert len(set(row[needed])) == len(needed)
        assert set(row[needed]) <= set(range(10, 14))
        # What the step reads is where the one before left it.
        read = [page for page in needed if page * 32 < begin]
        assert (row[read] == before[read]).all()
        begin, before = end, row.copy()
    with pytest.raises(ValueError, match="the state behind token 64 is not there"):
        states.fill(row, 64, 65)
    states.fill(row, 0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "model")


def reference(folder: Path, ids: list[int]) -> F32:
    """Logits with a page of states for all tokens."""
    return Sequences(folder, context=len(ids), sequences=1).logits({0: ids})


def test_logits_of_long_texts(folder: Path) -> None:
    with NativeModel(folder, context_tokens=700, **OPTIONS) as model:
        for count in (2 * STEP_TOKENS + 77, 33, STEP_TOKENS):
            ids = tokens(count, seed=count)
            parts = [logits for _, logits in model.logits(ids)]
            assert np.array_equal(np.concatenate(parts), reference(folder, ids))


@pytest.mark.parametrize("context", [1, 31, 32, 33, 64, 90, STEP_TOKENS + 32])
def test_branches_do_not_change_what_they_follow(context: int, folder: Path) -> None:
    ids = tokens(context)
    branches = [tokens(count, seed=count) for count in (1, 40, 64, STEP_TOKENS + 3)]
    expected = [reference(folder, ids + branch)[context:] for branch in branches]
    with NativeModel(folder, context_tokens=context + STEP_TOKENS + 3, branches=2, **OPTIONS) as model:
        model.prefill(ids)
        for _ in range(2):
            found = list(model.branches(context, branches))
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_generated_text_is_that_of_whole_texts(folder: Path) -> None:
    prompt = tokens(40)
    with NativeModel(folder, context_tokens=120, **OPTIONS) as model:
        sampler = _native.Sampler(vocab_size=96, prompt=prompt, temperature=0.0)
        found = list(model.generate(prompt, sampler, 80, frozenset()))
    assert found == list(reference(folder, prompt + found)[len(prompt) - 1 : -1].argmax(1))
