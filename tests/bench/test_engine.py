import json
from pathlib import Path

import pytest

from bench.engine import main
from tests.kernels.tiny_model import LLAMA, write_random_model


def test_one_json_object_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    sizes = ["--prompt", "40", "--generate", "5", "--batch", "1,3", "--decode-context", "9", "--repeats", "2"]
    assert main([str(folder), "--threads", "1", "--json", "--stages", *sizes]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert result["prefill_tokens_per_s"] == pytest.approx(40 / result["first_token_s"], rel=0.01)
    assert set(result["decode_tokens_per_s"]) == {"1", "3"}
    assert min(result["decode_tokens_per_s"].values()) > 0
    assert result["load_s"] > 0
    assert result["resident_bytes"] > sum(result["resident_bytes_by_owner"].values())
    assert result["threads"] == 1
    assert [times["steps"] for times in result["stages"].values()][:1] == [2]  # one a round
    for work, times in result["stages"].items():
        assert sum(times["types_s"].values()) == pytest.approx(times["step_s"], rel=0.01)
        assert sum(times["stages_s"].values()) == pytest.approx(times["step_s"], rel=0.01)
        assert min(times["types_s"]["products"], times["types_s"]["attention"], times["types_s"]["rest"]) > 0
        assert work in printed.err
    assert {"qkv", "attention", "gate_up", "head"} <= times["stages_s"].keys()
    assert {"cpu", "tier", "commit", "kv_type", "model", "repeats"} <= set(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1,1"], "no list of different numbers"),
        (["--batch", "0"], "no list of different numbers"),
        (["--prompt", "0"], "must be at least 1, not 0"),
        (["--threads", "x"], "invalid"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["model", "--threads", "1", *arguments])
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing"), "--threads", "1"]) == 2
    assert "nothing" in capsys.readouterr().err.splitlines()[-1]
