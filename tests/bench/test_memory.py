import json
from pathlib import Path

import pytest

from bench.memory import main
from tests.kernels.tiny_model import LLAMA, write_random_model


def test_one_json_object_says_it_all_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.memory._IDLE_S", 0.002)  # so small a model has decoded all before a chat counts as idle
    monkeypatch.setattr("bench.memory._DECODED_TOKENS", 500)
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    (tmp_path / "disk").mkdir()
    sizes = [
        "--tokens",
        "64,200",
        "--rounds",
        "2",
        "--io-threads",
        "1",
        "--kv-type",
        "int16",
        "--write-bytes-per-s",
        "100000",
    ]
    assert main([str(folder), "--threads", "1", "--json", "--folder", str(tmp_path / "disk"), *sizes]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert set(result["first_token_ms"]) == {"64", "200"}
    for figures in result["first_token_ms"].values():
        assert min(figures.values()) > 0
        assert {"cold", "hot", "restored", "restored_from_disk", "allowed_ms"} <= set(figures)
    assert set(result["limits_bytes_per_s"]) == {"read", "decrypt"}
    assert result["decoding_while_saving"]["saving_over_alone"] > 0
    assert {"cpu", "tier", "commit", "kv_type", "model", "rounds", "page_bytes"} <= set(result)
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_missing_model_or_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing"), "--threads", "1"]) == 2
    assert "nothing" in capsys.readouterr().err.splitlines()[-1]
    folder = write_random_model(tmp_path / "tiny")
    assert main([str(folder), "--threads", "1", "--folder", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err.splitlines()[-1]
