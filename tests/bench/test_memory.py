import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.engine.memory.engine_memory import MemoryOptions
from bench.memory import main
from bench.memory_decoding import median_interval, tokens_per_s
from bench.memory_rig import rig
from bench.peers.llama_cpp_state import command
from tests.kernels.tiny_model import LLAMA, write_random_model


def run(folder: Path, disk: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    sizes = ["--rounds", "2", "--io-threads", "1", "--kv-type", "int16", "--comparisons", "3"]
    assert main([str(folder), "--threads", "1", "--json", "--folder", str(disk), *sizes, *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    result: dict[str, Any] = json.loads(printed.out)
    return result


def test_one_json_object_says_it_all_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.memory_decoding._ALONE_S", 0.005)
    monkeypatch.setattr("bench.memory_decoding._SAVED_BYTES", 40_000)
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    (tmp_path / "disk").mkdir()
    lengths = ["--tokens", "64,200", "--disk-tokens", "100", "--disk-bytes-per-s", "1000000", "--write-bytes-per-s"]
    result = run(folder, tmp_path / "disk", capsys, *lengths, "4000000")
    assert set(result["first_token_ms"]) == {"64", "200"}
    for figures in result["first_token_ms"].values():
        assert min(figures[kind] for kind in ("cold", "hot", "restored", "restored_from_disk", "allowed", "saved")) > 0
        low, high = figures["ranges"]["restored"]
        assert low <= figures["restored"] <= high
        assert "llama_cpp" not in figures
    assert set(result["limits_bytes_per_s"]) == {"read", "decrypt"}
    assert [disk["bytes_per_s"] for disk in result["disks"]] == [None, 1_000_000]
    assert all(set(disk["first_token_ms"]["100"]) > {"computed", "always", "auto"} for disk in result["disks"])
    decoding = result["decoding_while_saving"]
    assert 0 < decoding["low"] <= decoding["saving_over_alone"] <= decoding["high"]
    assert result["command"].startswith("redoubt bench memory ")
    assert {"cpu", "tier", "commit", "kv_type", "model", "rounds", "page_bytes"} <= set(result)
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_slower_disk_takes_its_time_and_auto_computes_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.memory.loads._ALWAYS_DEADLINE_S", 600.0)
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    options: dict[str, Any] = {"threads": 1, "kv_type": "int16", "io_threads": 2, "write_bytes_per_s": 1e9}
    with rig(folder, tmp_path, longest_tokens=200, **options) as bench:
        bench.begin(MemoryOptions(save="logout", restore="always", min_tokens=1))
        prompt = [random.Random(1).randrange(bench.runner.vocab_size) for _ in range(200)]
        _, answer = bench.first_token(prompt)
        bench.save()
        bench.clear()
        bench.folder.read_bytes_per_s = 2.0 * bench.folder.file_bytes  # six pages: three seconds
        slow_s, restored = bench.first_token(prompt)
        assert slow_s > 2.75
        assert bench.memory.statistics().restored_tokens == 6 * bench.page_tokens
        bench.clear()
        bench.memory.loads.restore = "auto"
        bench.memory.loads._seconds_per_token = lambda: 1e-4  # not what this machine takes just now
        fast_s, computed = bench.first_token(prompt)
        assert fast_s < slow_s
        assert bench.memory.statistics().restored_tokens == 6 * bench.page_tokens
        assert answer == restored == computed


def test_llama_cpp_saves_its_sequences_in_a_process_of_its_own_interpreter(tmp_path: Path) -> None:
    python, option, module, *rest = command(tmp_path, Path("/models/one.gguf"), 2, 4160)
    assert (python, option, module) == (f"{tmp_path}/llama_cpp/bin/python", "-m", "bench.peers.llama_cpp_state")
    assert rest == ["/models/one.gguf", "--threads", "2", "--clock", "wall", "--context", "4160"]


def test_a_rate_counts_the_steps_within_its_time() -> None:
    times = [0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 9.0]  # two tokens in some steps
    assert tokens_per_s(times, 0.5, 5.0) == 3 / 2
    with pytest.raises(RuntimeError, match="lower --write-bytes-per-s"):
        tokens_per_s(times, 8.0, 9.5)


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 0), (8, 0), (9, 1), (20, 5), (40, 13)])
def test_the_medians_interval_is_the_narrowest_that_holds_in_95_of_100(count: int, rank: int) -> None:
    ordered: Sequence[float] = [float(number) for number in range(count)]
    assert median_interval(ordered) == (rank, count - 1 - rank)
    outside = sum(math.comb(count, below) for below in range(rank + 1)) / 2**count
    assert outside <= 0.025 or rank == 0


def test_a_missing_model_or_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing"), "--threads", "1"]) == 2
    assert "nothing" in capsys.readouterr().err.splitlines()[-1]
    folder = write_random_model(tmp_path / "tiny")
    assert main([str(folder), "--threads", "1", "--folder", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err.splitlines()[-1]
