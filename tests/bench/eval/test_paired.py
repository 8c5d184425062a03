"""Paired comparisons against values worked out by hand and against resampling."""

import math

import numpy as np
import pytest

from bench.eval.paired import paired_accuracy, paired_perplexity, sign_test


def test_accuracy_of_the_same_tasks() -> None:
    result = paired_accuracy("1111100000", "1110011000")
    assert (result["lost"], result["won"], result["difference"]) == (2, 2, 0)
    assert result["mcnemar_p"] == 1
    assert result["difference_stderr"] == pytest.approx(math.sqrt(0.4 / 9))
    gains = [0] * 6 + [1] * 2 + [-1] * 2
    assert result["difference_stderr"] == pytest.approx(np.std(gains, ddof=1) / math.sqrt(10))
    assert paired_accuracy("10", "10") == {
        "difference": 0, "difference_stderr": 0, "lost": 0, "won": 0, "mcnemar_p": 1
    }  # fmt: skip


def test_the_exact_test() -> None:
    assert sign_test(0, 5) == 2 / 32
    assert sign_test(1, 9) == 2 * (1 + 10) / 1024
    assert sign_test(1, 9) == sign_test(9, 1)
    assert 0 < sign_test(400, 900) < 1e-40


def test_perplexity_of_the_same_windows() -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(50, 100, 400)
    base = -2.0 * tokens + generator.normal(0, 20, 400)
    other = base - 0.1 * tokens + generator.normal(0, 3, 400)
    result = paired_perplexity(base.tolist(), other.tolist(), tokens.tolist())
    assert result["rise"] == pytest.approx(math.exp(float((base - other).sum() / tokens.sum())) - 1)
    drawn = generator.integers(0, 400, (2000, 400))
    rises = np.exp((base - other)[drawn].sum(1) / tokens[drawn].sum(1)) - 1
    assert result["rise_stderr"] == pytest.approx(rises.std(), rel=0.1)


def test_others_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 3 tasks"):
        paired_accuracy("10", "101")
    with pytest.raises(ValueError, match="2 and 1 windows"):
        paired_perplexity([1.0, 2.0], [1.0], [3, 4])
