"""A model of the store that is calibrated anew: what is kept, what goes, and what can't be improved."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.commands import improving
from app.commands.improving import Improvement, improvable, improve
from app.commands.pulling import Conversion, converted_into_store
from app.commands.serving import names_to_improve, ready
from app.launch.improvements import Improved, Improvements
from app.models.store import StoreError, converted_model
from quant.calibration.text import divided_text
from tests.hub import Hub


@pytest.fixture
def named(hub: Hub, hf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that was converted from the hub, whose source is gone."""
    hub.add("org/tiny", hf_folder)
    monkeypatch.setattr(improving, "METHOD", "quick")  # seconds
    converted_into_store("org/tiny", Conversion(method="rtn"))
    return "org/tiny"


@pytest.mark.parametrize(("after", "is_better"), [(1.0, True), (3.0, False)])
def test_the_better_one_stays(named: str, after: float, is_better: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ready(named)
    monkeypatch.setattr(improving, "perplexity", lambda model, text: 2.0 if model == before else after)
    done = improve(named)
    assert done == Improvement(str(before), done.after, 2.0, after)
    assert (done.after is not None) == is_better
    assert converted_model(named) == (Path(done.after) if done.after else before)
    assert before.is_dir()
    assert before.name == ready(named).name
    assert not list(before.parents[1].glob("*.txt"))
    assert f"perplexity 2.00 before, {after:.2f} after" in done.told(named)
    if is_better:
        with pytest.raises(StoreError, match="is improved already"):
            improve(named)
        assert not list(before.parents[1].glob("*.txt"))


def test_perplexities_are_measured_on_a_text_that_no_code_was_chosen_by(named: str, tmp_path: Path) -> None:
    calibrating, held_back = divided_text()
    assert not set(calibrating.split("\f")) & set(held_back.split("\f"))
    assert len(held_back) > len(calibrating) / 12
    text = tmp_path / "text"
    text.write_text(held_back)
    assert improving.perplexity(ready(named), text) > 1.0


def test_codes_of_the_source_stay(hub: Hub, gguf_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hub.add("org/tiny", gguf_folder)
    before = ready("org/tiny:Q4_0")
    assert improve("org/tiny:Q4_0").after is None
    assert ready("org/tiny:Q4_0") == before


def test_what_can_t_be_improved(named: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"org/other: is not in the store .*: redoubt pull org/other"):
        improvable("org/other")
    with pytest.raises(StoreError, match="is a converted model, and not what it was made from"):
        improvable(str(ready(named)))
    (tmp_path / "config.yaml").write_text("applications: []")
    with pytest.raises(StoreError, match="names no model of the store"):
        names_to_improve([], tmp_path / "config.yaml")
    assert names_to_improve([named], tmp_path / "config.yaml") == [named]


def test_a_service_improves_its_models_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"told": "it is improved", "before": "/a", "after": "/b"}
    program = (
        "import sys\nif sys.argv[1] == 'bad': sys.exit('redoubt: no disk')\n"
        f"print('what a conversion prints'); print({json.dumps(said)!r})"
    )
    monkeypatch.setattr("app.launch.improvements.improving_command", lambda name: [sys.executable, "-c", program, name])
    monkeypatch.setattr("app.launch.idle_process._BUSY_CORES", 1e9)
    improvements = Improvements(["bad", "good"], tmp_path / "log")
    found: list[Improved] = []
    while len(found) < 2:
        if (improved := improvements.look()) is not None:
            found.append(improved)
        time.sleep(0.02)
    assert found[0].told == "bad was not improved: no disk"
    assert (found[0].after, found[1].before, found[1].after) == (None, Path("/a"), Path("/b"))
    assert improvements.look() is None
    improvements.close()


def test_a_mistake_is_one_line_and_a_status(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app.commands.improving", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("redoubt: ")
    assert done.stderr.count("\n") == 1
