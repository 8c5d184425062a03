"""The command with sections of the tests' own: going on after an interruption, what a failure leaves, bad options."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.report import command
from bench.report.command import PAGE_NAME, chosen_sections, main, measure_report, shown_command
from bench.report.record import Record, RecordError
from bench.report.section import NotMeasuredError, ReportOptions, Section, Setup
from bench.report.view import Lines, Table, View
from tests.kernels.tiny_model import LLAMA, write_random_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_random_model(tmp_path / "secret-place" / "tiny", LLAMA, "sym_int4")


class Measuring:
    """Sections that count how often they were measured, and do what they are told."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.failing: dict[str, BaseException] = {}
        self.sections = tuple(self.section(name) for name in ("one", "two", "three"))

    def section(self, name: str) -> Section:
        def measure(setup: Setup) -> dict[str, Any]:
            self.measured.append(name)
            if name in self.failing:
                raise self.failing[name]
            return {"figure": 12.5}

        def view(result: Mapping[str, Any]) -> View:
            points = [(1.0, result["figure"]), (2.0, 3.0)]
            chart = Lines(title=name, x_label="x", y_label="y", series={"a": points})
            return View(charts=[chart], tables=[Table(caption="", columns=["", "a"], rows=[["b", "c"]])])

        return Section(name, f"About {name}", "How.", measure, view, lambda setup: 1.0)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    pytest.importorskip("matplotlib")
    made = Measuring()
    monkeypatch.setattr(command, "SECTIONS", made.sections)
    monkeypatch.setattr(command, "_NAMES", ("one", "two", "three"))
    monkeypatch.setattr(command, "commit", lambda: "abc")
    return made


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


def options(model: Path, out: Path, **changed: Any) -> ReportOptions:
    return ReportOptions(model=model, out=out, windows=1, threads=1, **changed)


def run(model: Path, out: Path, *more: str) -> int:
    return main([str(model), "--out", str(out), "--threads", "1", *more])


def test_all_is_measured_and_written(measuring: Measuring, model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "out") == 0
    report = written(tmp_path / "out")
    assert {name: entry["status"] for name, entry in report["sections"].items()} == dict.fromkeys(
        ("one", "two", "three"), "measured"
    )
    assert report["sections"]["two"]["result"] == {"figure": 12.5}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [PAGE_NAME, "report.json"]
    text = (tmp_path / "out" / PAGE_NAME).read_text(encoding="utf-8")
    for private in (str(tmp_path), "secret-place"):
        assert private not in text
        assert private not in json.dumps(report)


def test_an_interrupted_run_goes_on_where_it_stopped(
    measuring: Measuring, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring.failing["two"] = KeyboardInterrupt()
    assert run(model, tmp_path / "out") == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert list(written(tmp_path / "out")["sections"]) == ["one"]
    assert (tmp_path / "out" / PAGE_NAME).exists()
    measuring.failing.clear()
    assert run(model, tmp_path / "out") == 0
    assert measuring.measured == ["one", "two", "two", "three"]


def test_the_json_is_written_after_every_section(
    measuring: Measuring, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []
    put = Record.put

    def put_and_look(record: Record, *arguments: Any, **named: Any) -> None:
        put(record, *arguments, **named)
        there.append(list(written(tmp_path / "out")["sections"]))

    monkeypatch.setattr(Record, "put", put_and_look)
    assert run(model, tmp_path / "out") == 0
    assert there == [["one"], ["one", "two"], ["one", "two", "three"]]


def test_a_failed_section_leaves_the_others_and_is_tried_again(
    measuring: Measuring, model: Path, tmp_path: Path
) -> None:
    measuring.failing["one"] = RuntimeError(f"{tmp_path}/secret-place/log: no such thing")
    assert run(model, tmp_path / "out") == 1
    sections = written(tmp_path / "out")["sections"]
    assert sections["one"]["status"] == "failed"
    assert sections["one"]["reason"] == "log: no such thing"
    assert [sections[name]["status"] for name in ("two", "three")] == ["measured"] * 2
    assert "Failed: log: no such thing" in (tmp_path / "out" / PAGE_NAME).read_text(encoding="utf-8")
    measuring.failing.clear()
    assert run(model, tmp_path / "out") == 0
    assert measuring.measured == ["one", "two", "three", "one"]


def test_nothing_to_measure_is_no_failure(measuring: Measuring, model: Path, tmp_path: Path) -> None:
    measuring.failing["two"] = NotMeasuredError("one node")
    assert run(model, tmp_path / "out") == 0
    entry = written(tmp_path / "out")["sections"]["two"]
    assert (entry["status"], entry["reason"]) == ("not measured", "one node")
    measuring.failing.clear()
    assert run(model, tmp_path / "out") == 0  # the machine may have more now
    assert measuring.measured == ["one", "two", "three", "two"]


def test_fresh_forgets_the_chosen_sections_alone(measuring: Measuring, model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "out") == 0
    assert run(model, tmp_path / "out", "--fresh", "--only", "two") == 0
    assert measuring.measured == ["one", "two", "three", "two"]
    assert set(written(tmp_path / "out")["sections"]) == {"one", "two", "three"}


def test_each_section_has_its_date(measuring: Measuring, model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "out", "--only", "one") == 0
    path = tmp_path / "out" / "report.json"
    earlier = written(tmp_path / "out")
    earlier["sections"]["one"]["measured_at"] = "2025-01-02 03:04 UTC"
    path.write_text(json.dumps(earlier))
    assert run(model, tmp_path / "out", "--only", "two") == 0
    dates = {name: entry["measured_at"] for name, entry in written(tmp_path / "out")["sections"].items()}
    assert dates["one"] == "2025-01-02 03:04 UTC" < dates["two"]
    text = (tmp_path / "out" / PAGE_NAME).read_text(encoding="utf-8")
    assert dates["one"] in text
    assert dates["two"] in text


def test_sections_can_be_chosen_and_added(measuring: Measuring, model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "out", "--only", "two") == 0
    assert run(model, tmp_path / "out", "--skip", "two,three") == 0
    assert measuring.measured == ["two", "one"]
    assert set(written(tmp_path / "out")["sections"]) == {"one", "two"}


@pytest.mark.parametrize("changed", [{"quick": True}, {"windows": 2}, {"threads": 2}])
def test_another_reports_folder_is_refused(
    measuring: Measuring, model: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    assert measure_report(options(model, out), measuring.sections) == 0
    before = written(out)
    other = ReportOptions(**{"model": model, "out": out, "windows": 1, "threads": 1, **changed})
    with pytest.raises(RecordError, match=r"report.json is of another model, other options .* --fresh"):
        measure_report(other, measuring.sections)
    assert written(out) == before
    assert measure_report(other, measuring.sections, fresh=True) == 0
    assert measuring.measured == ["one", "two", "three"] * 2


def test_a_damaged_json_is_named(measuring: Measuring, model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.json").write_text("[]")
    assert run(model, tmp_path / "out") == 2
    assert measuring.measured == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--only", "coffee"],
            "no section 'coffee': machine, types, lengths, tokens, numa, concurrency, overhead",
        ),
        (["--only", "numa", "--skip", "numa"], "leave no section"),
        (["--threads", "0"], "must be at least 1"),
        (["--threads", "100000"], "cores that this process may use"),
        (["--windows", "0"], "must be at least 1"),
        (["--text", "/nowhere/a.txt"], "--text /nowhere/a.txt: no such file"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model", "--out", "/tmp/out", *arguments])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_without_matplotlib_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "redoubt[bench]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_model_is_one_line(measuring: Measuring, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "nothing", tmp_path / "out") == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_shown_command_has_names_and_no_places(tmp_path: Path) -> None:
    shown = shown_command(options(tmp_path / "a b", tmp_path / "out", text=tmp_path / "t.txt", quick=True))
    assert shown == "redoubt bench report 'a b' --out out --text t.txt --windows 1 --threads 1 --quick"


def test_chosen_sections_keep_the_pages_order() -> None:
    assert [section.name for section in chosen_sections(["overhead", "machine"], [])] == ["machine", "overhead"]
