"""What kernels wait for: which cases are run in which checkout, and what the JSON says."""

import json
import sys
from pathlib import Path

import pytest

from bench.experiments import kernel_waits
from bench.processor import this_processor
from bench.published import papers
from bench.published.results import Results


def test_each_case_runs_in_both_checkouts_and_the_json_makes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"

    def in_checkout(folder: Path, arguments: list[str]) -> dict[str, float]:
        phases = {f"{phase}_us": 10.0 for phase in (*kernel_waits.PHASES.values(), "call")}
        rate = 100.0 if folder == other else 105.0
        return {"waits_share": 0.1, "waits_us": 60.0, **phases, "step_us": 600.0, "tokens_per_s": rate}

    monkeypatch.setattr(kernel_waits, "in_checkout", in_checkout)
    out = tmp_path / "kernel-waits-embedded-here.json"
    words = ["kernel_waits", "model", "--threads", "1", "--streams", "1,4", "--against", str(other), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    kernel_waits.main()
    result = json.loads(out.read_text())
    assert result == json.loads(capsys.readouterr().out)
    assert result["machine"]["name"] == this_processor().name
    assert result["command"].startswith("python -m bench.experiments.kernel_waits model --threads 1")
    head, _, *rows = papers.kernel_waits(Results(tmp_path))
    assert "before" in head
    assert [row.count("+5.0 % tokens/s") for row in rows] == [1, 1, 1, 1]
