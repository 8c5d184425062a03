"""A folder that is replaced is always there, whole, wherever the process ends or an error comes; odd names work."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from quant.errors import OutputError
from quant.files import atomic_folder as module
from quant.files.atomic_folder import atomic_folder
from quant.files.exchange import exchange


def fill(folder: Path, text: str) -> None:
    """A model of two files that belong together."""
    for name in ("config.json", "weights"):
        (folder / name).write_text(text)


def replace(out: Path, text: str) -> None:
    with atomic_folder(out, force=True, replaceable=lambda _: True) as folder:
        fill(folder, text)


def content(folder: Path) -> str | None:
    """What a whole model says, None for a folder that is not there. A mixture or a part of one fails."""
    if not folder.exists():
        return None
    texts = [(folder / name).read_text() for name in ("config.json", "weights")]
    assert texts[0] == texts[1]
    return texts[0]


def replaced_with_end_at_every_line(tmp_path: Path, end: str, *, exchanges: bool) -> list[tuple[Path, bool]]:
    """Replaces a model as often as atomic_folder.py has lines to run, and ends at another line each time.

    end: what the process does at that line. Returns each try's folder, and whether the line was reached: all but the
    last were.
    """
    code = f"""
        import json, os, signal, sys
        from pathlib import Path
        from quant.files import atomic_folder as module
        from tests.quant.files.test_atomic_folder import fill, replace

        def replace_until(out, point):
            lines = 0
            def trace(frame, event, argument):
                nonlocal lines
                if frame.f_code.co_filename != module.__file__:
                    return None
                lines += event == "line"
                if lines == point and event == "line":
                    sys.settrace(None)
                    {end}
                return trace
            sys.settrace(trace)
            replace(out, "new")
            sys.settrace(None)

        if {not exchanges}:
            module.exchange = lambda one, other: False
        for point in range(1, 1000):
            out = Path({str(tmp_path)!r}) / str(point) / "model"
            out.mkdir(parents=True)
            fill(out, "old")
            child = os.fork()
            if child == 0:
                try:
                    replace_until(out, point)
                except KeyboardInterrupt:
                    os._exit(1)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            print(status, flush=True)
            if status == 0:
                break
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stderr
    reached = [int(status) != 0 for status in finished.stdout.split()]
    assert len(reached) > 20
    assert reached == [True] * (len(reached) - 1) + [False]
    return [(tmp_path / str(point) / "model", each) for point, each in enumerate(reached, 1)]


@pytest.fixture
def swapping(tmp_path: Path) -> Path:
    """A folder on a file system that can swap two names; nearly every local one can."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / folder.name).touch()
    if not exchange(one, other):
        pytest.skip("this file system has no exchange")
    assert [path.name for path in one.iterdir()] == ["other"]
    assert [path.name for path in other.iterdir()] == ["one"]
    return tmp_path / "swapping"


def test_an_exchange_with_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "none")


KILLED, RAISED = "os.kill(os.getpid(), signal.SIGKILL)", "raise KeyboardInterrupt"


@pytest.mark.parametrize("end", [KILLED, RAISED])
def test_a_model_is_under_its_name_wherever_the_replacement_ends(swapping: Path, end: str) -> None:
    for out, reached in replaced_with_end_at_every_line(swapping, end, exchanges=True):
        assert content(out) in (("old", "new") if reached else ("new",)), out


def test_without_an_exchange_a_raise_leaves_a_model_under_its_name(tmp_path: Path) -> None:
    for out, reached in replaced_with_end_at_every_line(tmp_path, RAISED, exchanges=False):
        assert content(out) in (("old", "new") if reached else ("new",)), out


def test_without_an_exchange_a_killed_process_leaves_the_old_model_in_sight(tmp_path: Path) -> None:
    aside = 0
    for out, reached in replaced_with_end_at_every_line(tmp_path, KILLED, exchanges=False):
        kept = [folder for folder in out.parent.glob("model.replaced-*") if any(folder.iterdir())]
        if content(out) is None:
            aside += 1
            assert [content(folder) for folder in kept] == ["old"], out
            replace(out, "newer")  # a later replacement does not take the old model for rubbish
            assert [content(folder) for folder in kept] == ["old"], out
            assert content(out) == "newer"
        else:
            assert content(out) in (("old", "new") if reached else ("new",)), out
    assert aside, "no line between the two renames was tried"


@pytest.mark.parametrize("exchanges", [True, False])
def test_nothing_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(module, "exchange", lambda one, other: False)
    for text in ("first", "second", "third"):
        replace(tmp_path / "model", text)
        assert content(tmp_path / "model") == text
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_swap_that_fails_is_told_and_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(one: Path, other: Path) -> bool:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(one))

    replace(tmp_path / "model", "old")
    monkeypatch.setattr(module, "exchange", fails)
    with pytest.raises(OutputError, match=r"model: can't be put in its place: Operation not permitted"):
        replace(tmp_path / "model", "new")
    assert content(tmp_path / "model") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["model[x]", "model*", "model?"])
def test_what_a_killed_process_left_is_found_by_its_very_name(tmp_path: Path, name: str) -> None:
    stale, others = tmp_path / f".{name}.partial-dead", tmp_path / ".modelx.partial-dead"
    for folder in (stale, others):
        folder.mkdir()
    replace(tmp_path / name, "new")
    assert not stale.exists()
    assert others.exists(), "another output's folder was removed"
