import argparse
import json
import subprocess
from pathlib import Path

import pytest

from bench import common
from bench.common import at_least, json_text, machine, memory_bytes, number_list, print_result
from bench.rates import Rates, best_rates


@pytest.mark.parametrize("text", ["", "x", "0", "1,0", "-3", "2,2", "1,,2"])
def test_a_list_has_different_positive_numbers(text: str) -> None:
    assert number_list("1,8,32") == (1, 8, 32)
    with pytest.raises(argparse.ArgumentTypeError, match="is no list of different numbers from 1 on"):
        number_list(text)


def test_numbers_have_a_least_value() -> None:
    assert at_least(2)("2") == 2
    with pytest.raises(argparse.ArgumentTypeError, match="must be at least 2, not 1"):
        at_least(2)("1")


def test_results_and_docs_do_not_change_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        person = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *person, *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(common, "ROOT", tmp_path)
    files = [tmp_path / name for name in ("docs/a.md", "bench/results/a.json", "bench/a.py")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    clean = common.commit()
    assert len(clean) == 12
    for file in files:
        assert common.commit() == clean
        file.write_text("after")
    assert common.commit() == f"{clean}-dirty"
    monkeypatch.setattr(common, "ROOT", tmp_path / "bench")  # installed below somebody's repository
    assert clean not in common.commit()


def test_memory_is_read_from_proc() -> None:
    assert memory_bytes("/proc/self/status", "VmRSS") > 1 << 20
    with pytest.raises(OSError, match="/proc/self/status has no VmNone"):
        memory_bytes("/proc/self/status", "VmNone")


def test_the_best_of_each_rate_counts() -> None:
    assert best_rates([Rates(1.0, 9.0, "vnni"), Rates(2.0, 8.0, "vnni")]) == Rates(2.0, 9.0, "vnni")


def test_kept_json_has_short_lists_on_one_line() -> None:
    result = {"a": [1, 2.5, None], "texts": ["[\n 1\n]", "{}"], "rounds": {"b": [3], "c": list(range(60))}, "empty": []}
    text = json_text(result)
    assert json.loads(text) == result
    lines = text.splitlines()
    assert ' "a": [1, 2.5, null],' in lines
    assert '  "b": [3],' in lines
    assert len(lines) > 60, "a long list stays as it is"


def test_a_command_ends_with_a_result_or_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    def refuses() -> object:
        raise ValueError("no such model")

    assert print_result(machine, (ValueError,), indent=None) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"cpu", "commit"}
    assert print_result(refuses, (ValueError,), indent=None) == 2
    assert capsys.readouterr().err == "redoubt: no such model\n"
