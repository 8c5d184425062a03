import json
from pathlib import Path

import pytest

from bench.scale.measure import main
from bench.scale.workload import Lengths


def test_one_policy_of_one_worker_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    arguments = ["--workers", "1", "--policy", "TWO_CHOICES", "--seeds", "3", "--seconds", "300", "--out", str(out)]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text())
    assert {row["scenario"]["policy"] for row in result["scenarios"]} == {"TWO_CHOICES"}
    assert {row["scenario"]["routers"] for row in result["scenarios"]} == {1, 4, 16, 64}
    for row in result["scenarios"]:
        median, least, most = row["token_s"]["p95"]
        assert 0 < least < median < most, "the seeds differ"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workers", "0"], "no list of different numbers"),
        (["--workers", "9000"], "at most 5000 workers"),
        (["--policy", "BEST"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert reason in error
    assert error.count("\n") == 1


def test_lengths_of_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.json"
    turns = [{"value": "x" * 400}, {"value": "y" * 80}, {"value": "z"}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    assert Lengths.of_file(path).pairs == ((100, 20),)
    path.write_text('{"a": 1}')
    assert main(["--data", str(path), "--workers", "1"]) == 2
    assert "not a JSON list" in capsys.readouterr().err
    path.write_text("[]")
    with pytest.raises(ValueError, match="no conversation"):
        Lengths.of_file(path)
