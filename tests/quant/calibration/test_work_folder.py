import contextlib
from pathlib import Path

import numpy as np
import pytest

from quant.calibration.work_folder import work_folder
from quant.errors import OutputError

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def interrupted(out: Path, key: str, steps: int) -> None:
    """A conversion that saved `a` and ended before it was done."""
    with contextlib.suppress(KeyboardInterrupt), work_folder(out, key) as work:
        work.save("a", VALUES)
        work.finish_step(steps - 1)
        raise KeyboardInterrupt


def test_what_was_saved_is_there_the_next_time(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "key", 1)
    with work_folder(tmp_path / "out", "key") as work:
        assert work.steps_done == 1
        assert np.array_equal(work.load("a"), VALUES)
        work.forget("a")
        assert not work.has("a")
    assert list(tmp_path.iterdir()) == []


def test_other_options_begin_anew(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "one", 5)
    with work_folder(tmp_path / "out", "two") as work:
        assert work.steps_done == 0
        assert not work.has("a")


def test_a_damaged_state_begins_anew(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "key", 5)
    (tmp_path / ".out.calibration/state.json").write_text('{"key": "key", "steps_')
    with work_folder(tmp_path / "out", "key") as work:
        assert work.steps_done == 0


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with (
        work_folder(tmp_path / "out", "key"),
        pytest.raises(OutputError, match="another conversion"),
        work_folder(tmp_path / "out", "key"),
    ):
        pass
