"""`redoubt bench published`: what it runs, what it leaves, and the page that it writes."""

import json
from pathlib import Path

import pytest

from bench.published import command, quality
from bench.published.page import TABLES
from bench.published.results import Results


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two results: one command prints its JSON, the other one fails."""
    commands = {
        "kv-error-embedded": ("python", "-c", "print('{\"schemes\": {}}')"),
        "gains-embedded": ("python", "-c", "raise SystemExit(3)", "OUT"),
    }
    monkeypatch.setattr(command, "COMMANDS", commands)
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"<!-- {name} {end} -->" for name in TABLES for end in ("begins", "ends")))
    return ["--results", str(tmp_path), "--page", str(page)]


def test_what_is_missing_is_measured_and_the_rest_goes_on(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*arguments, "--list"]) == 0
    assert capfd.readouterr().out.count("is not there") == 2
    assert command.main(arguments) == 1
    said = capfd.readouterr().err
    assert "gains-embedded: ended with status 3" in said
    (file,) = Results(tmp_path).of("kv-error-embedded")
    assert file.result == {"schemes": {}}
    assert file.stem in (tmp_path / "page.md").read_text()
    assert command.main([*arguments, "--only", "kv-error"]) == 0
    assert "kv-error" not in capfd.readouterr().err
    assert command.main([*arguments, "--only", "kv-error", "--since", "2026-01-01"]) == 0
    assert "does not say when" in capfd.readouterr().err


def test_what_is_wrong_is_one_line(arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kv-error-embedded.json").write_text("{")
    assert command.main([*arguments, "--page-only"]) == 2
    assert "measure it again or remove it" in capfd.readouterr().err
    (tmp_path / "kv-error-embedded.json").write_text(json.dumps({"schemes": {}}))
    (tmp_path / "page.md").write_text("")
    assert command.main([*arguments, "--page-only"]) == 2
    assert "<!-- summary begins -->" in capfd.readouterr().err


def test_methods_are_compared_on_the_same_tasks(tmp_path: Path) -> None:
    """Of 100 tasks of a set, `rtn` loses 10: a set's error is 3 points, half of that for the mean of four."""
    names = ("lambada", "piqa", "winogrande", "hellaswag")

    def row(name: str, right: int) -> dict[str, object]:
        found = {"acc": right / 100, "acc_norm": right / 100}
        digits = dict.fromkeys(found, "1" * right + "0" * (100 - right))
        return {"name": name, "results": {each: {**found, "right": digits} for each in names}}

    rows = [row("unquantized", 60), row("sym_int4-g64-rtn", 50), row("sym_int4-g64-quick", 60)]
    (tmp_path / "quality-methods-smollm2-135m.json").write_text(json.dumps({"rows": rows}))
    lines = quality.accuracy(Results(tmp_path))
    assert lines[3] == "| `sym_int4`, 64, `rtn` | 50.0% | 0.833 | -10.0 ± 1.5 | -10.0 ± 1.5 |"
    assert lines[4].endswith("| 60.0% | 1.000 | +0.0 ± 0.0 | — |")
