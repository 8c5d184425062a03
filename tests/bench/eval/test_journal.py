"""A run's results survive an interruption, and nothing else."""

from pathlib import Path

from bench.eval.journal import Journal


def test_results_are_found_again_and_not_computed_twice(tmp_path: Path) -> None:
    first = Journal("run", tmp_path)
    assert first.get("a", lambda: [1, 2.5]) == [1, 2.5]
    second = Journal("run", tmp_path)
    assert second.get("a", lambda: 1 / 0) == [1, 2.5]
    other = Journal("another run", tmp_path)
    assert "a" not in other


def test_a_line_that_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    journal = Journal("run", tmp_path)
    journal.get("a", lambda: 1)
    journal.get("b", lambda: 2)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:-3])
    again = Journal("run", tmp_path)
    assert "a" in again
    assert again.get("b", lambda: 3) == 3
    assert Journal("run", tmp_path).get("b", lambda: 4) == 3


def test_a_complete_run_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal("run", tmp_path)
    journal.get("a", lambda: 1)
    journal.complete()
    assert not list(tmp_path.iterdir())


def test_some_results_can_be_forgotten(tmp_path: Path) -> None:
    journal = Journal("run", tmp_path)
    for key in ("types/a", "types/b", "other"):
        journal.get(key, lambda: 1)
    journal.forget("types/")
    assert journal.get("types/a", lambda: 2) == 2
    again = Journal("run", tmp_path)
    assert "other" in again
    assert "types/b" not in again
    assert again.get("types/a", lambda: 3) == 2
