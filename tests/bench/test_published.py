"""`redoubt bench published`: what it runs, what it leaves, and the page that it writes."""

import json
from pathlib import Path

import pytest

from bench.published import command
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
