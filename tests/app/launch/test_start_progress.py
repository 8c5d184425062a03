import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.launch.deployments import waiting_for
from app.launch.start_progress import StartProgress
from app.messages.start import StartPhase, note_phase
from tests.app.launch.test_preflight import service
from tests.app.tiny_model import write_model


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.launch.start_progress._TICK_S", 0.001)


def wait_for(out: io.StringIO, text: str) -> None:
    """Lets the thread write. The test's own timeout ends a wait in vain."""
    while text not in out.getvalue():
        pass


def test_a_file_gets_each_step_once_and_one_hint() -> None:
    out = io.StringIO()
    steps = iter(["Loading", "Loading", "Loading", *["Warming up"] * 1_000_000])
    with StartProgress(out, usual_s=0, logs="/some/logs") as progress:
        progress.now("Starting Ray")
        progress.now(lambda: next(steps))
        wait_for(out, "Warming up ...\n")
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("This takes longer than usual")]
    assert lines == ["Starting Ray ...", "Loading ...", "Warming up ..."]
    assert out.getvalue().count("Ray's logs: /some/logs\n") == 1


def test_a_terminals_line_is_rewritten_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.launch.start_progress.time", SimpleNamespace(monotonic=lambda: 0.0))  # stands still
    out = Terminal()
    with StartProgress(out, usual_s=1e9, logs="") as progress:
        progress.now("Starting Ray")
        wait_for(out, "\r\x1b[KStarting Ray ... 0 s\r")
    assert out.getvalue().endswith("Starting Ray ... 0 s\r\x1b[K")
    assert "\n" not in out.getvalue()


def test_an_output_that_is_closed_stops_nothing() -> None:
    out = io.StringIO()
    with StartProgress(out, usual_s=1e9, logs="") as progress:
        out.close()
        progress.now("Starting Ray")


def test_what_is_waited_for_follows_the_worker(tmp_path: Path) -> None:
    application = service(write_model(tmp_path / "a model")).application
    name, starts = application.args.model.name, tmp_path / "starts"
    describe = waiting_for(application, starts)
    assert describe() == "Starting the processes for a model"
    seen = []
    for phase in StartPhase:
        note_phase(starts, name, phase)
        seen.append(describe())
    assert seen == ["Loading a model (0 MB)", "Warming up a model", "Starting the API"]


def test_a_note_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    note_phase(tmp_path / "file", "org/model", StartPhase.LOADING)
    note_phase(tmp_path / "folder", "org/model", StartPhase.LOADING)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["org%2Fmodel"]
