"""The tables' runner on a tiny checkpoint: what it measures once, leaves out, and writes."""

import json
from pathlib import Path

import pytest

from bench.eval import command, quality_tables
from bench.eval.quality_tables import TABLES


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A text and one of the sets."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text.txt").write_text("It was the best of times, it was the worst of times. " * 60)
    entry = {"goal": "Warm the soup.", "sol1": "On the stove.", "sol2": "On the roof.", "label": 0}
    (folder / "piqa_dev.jsonl").write_text((json.dumps(entry) + "\n") * 3)
    return folder


def test_tables_are_made_once_and_name_what_is_missing(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    marks = [f"<!-- quality-{name}-tiny {end} -->\n" for name in ("groups", "methods") for end in ("begins", "ends")]
    page.write_text("".join(marks))
    arguments = [str(checkpoint), "--name", "tiny", "--work", str(tmp_path / "work"), "--data", str(data)]
    arguments += [
        "--tables",
        "groups,methods",
        "--only",
        "rtn",
        "--windows",
        "2",
        "--limit",
        "piqa=2",
        "--threads",
        "1",
    ]
    arguments += ["--page", str(page), "--note", "a note"]
    assert quality_tables.main(arguments) == 0
    said = capsys.readouterr().err
    assert "left out of methods: lambada" in said
    methods = json.loads((tmp_path / "work/quality-methods-tiny.json").read_text())
    assert methods["notes"][0] == "a note"
    assert any("winogrande_dev.jsonl" in note for note in methods["notes"])
    assert methods["settings"]["piqa"] == {"tasks": 2}
    groups = json.loads((tmp_path / "work/quality-groups-tiny.json").read_text())
    moved = {row["name"]: row["results"]["weights"]["relative_rms"] for row in groups["rows"]}
    assert list(moved)[:2] == ["sym_int4-gtensor-rtn", "sym_int4-gchannel-rtn"]
    assert moved["sym_int4-gtensor-rtn"] > moved["sym_int4-gchannel-rtn"] > moved["sym_int4-g32-rtn"] > 0
    assert "| `sym_int4`, a row, `rtn` |" in page.read_text()

    def not_again(_: object) -> int:
        raise AssertionError

    monkeypatch.setattr(command, "main", not_again)
    assert quality_tables.main(arguments) == 0
    (kept,) = json.loads((tmp_path / "work/quality-groups-tiny.json").read_text())["notes"][-1:]
    assert kept.startswith("kept from an earlier run (20")
    with pytest.raises(AssertionError):
        quality_tables.main([*arguments, "--again"])


def test_without_the_sets_nothing_is_written_and_what_is_there_stays(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    arguments = [str(checkpoint), "--name", "tiny", "--work", str(work), "--data", str(tmp_path / "nowhere")]
    assert quality_tables.main([*arguments, "--tables", "ceval"]) == 2
    said = capsys.readouterr().err
    assert f"quality-ceval-tiny.json is not written: ceval: {tmp_path}/nowhere has no ceval" in said
    assert "docs/quality.md, Measuring" in said
    assert not work.exists()
    work.mkdir()
    before = json.dumps({"rows": [], "settings": {"kl": {}, "lambada": {"tasks": 400}}})
    (work / "quality-methods-tiny.json").write_text(before)
    arguments[-1] = str(data)
    assert quality_tables.main([*arguments, "--tables", "methods"]) == 2
    assert "lambada: " in capsys.readouterr().err
    assert (work / "quality-methods-tiny.json").read_text() == before


def test_a_run_that_fails_leaves_no_result(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "piqa_dev.jsonl").write_text("{}")
    arguments = [str(checkpoint), "--name", "tiny", "--work", str(tmp_path / "work"), "--data", str(data)]
    assert quality_tables.main([*arguments, "--tables", "methods", "--only", "rtn", "--windows", "2"]) == 2
    assert "line 1 has no goal" in capsys.readouterr().err
    assert not list((tmp_path / "work/results").glob("piqa*.jsonl"))


def test_every_table_can_be_converted() -> None:
    for table in TABLES.values():
        assert all(len(name.split("-")) == 3 for name in table.conversions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--tables", "x"], "there is no 'x'"), (["--limit", "piqa=0"], "'piqa=0' is no SET=N")],
)
def test_refusals(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["x", "--name", "x", "--work", str(tmp_path), "--data", str(tmp_path)]
    with pytest.raises(SystemExit):
        quality_tables.main([*folders, *arguments])
    assert message in capsys.readouterr().err
