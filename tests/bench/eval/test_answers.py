"""Two prompts of a tiny checkpoint: who answers, and for how long."""

import json
from pathlib import Path

import pytest

from bench.eval import answers


def test_both_models_answer_both_prompts(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "CONVERSION", "sym_int4-g32-rtn")
    arguments = [str(checkpoint), "--work", str(tmp_path / "work"), "--tokens", "4", "--threads", "1"]
    assert answers.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["prompt"] for row in found["rows"]] == list(answers.PROMPTS)
    for row in found["rows"]:
        assert set(row["answers"]) == {"unquantized", "sym_int4-g32-rtn"}
        assert all(isinstance(text, str) for text in row["answers"].values())


def test_a_checkpoint_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answers.main([str(tmp_path / "nothing"), "--work", str(tmp_path / "work")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
