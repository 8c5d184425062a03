"""The measure of `bench.eval.sts`, and its pairs."""

from pathlib import Path

import pytest

from bench.eval.sts import pairs, spearman


def test_spearman() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 99]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)  # equal ones share a rank


def test_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('genre\tfile\tyear\t0024\t2.500\tA "girl.\tA boy.\n' + "g\tf\ty\t1\t5.000\tOne.\tTwo.\tsource\n")
    assert pairs(path) == [(2.5, 'A "girl.', "A boy."), (5.0, "One.", "Two.")]
