import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import compare
from bench.common import ROOT
from bench.places import shown_command
from bench.process import CrashError
from bench.rates import Rates
from bench.table import command
from bench.table.pages import COMPARISONS, CONVERSATIONS, begin, end
from bench.table.runs import chosen_runs
from tests.bench.table.samples import FACTS, ONE, PROMPT, comparison, write

MACHINE = ["--threads", "2", "--machine", "Zen 4"]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name empty folders with pages, on a machine without git and with room for everything."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    for page in ("docs/benchmarks.md", "docs/benchmark-details.md", "results/README.md"):
        blocks = (f"{begin(name)}\n{end(name)}\n" for name in (COMPARISONS, CONVERSATIONS))
        (tmp_path / page).write_text("".join(blocks))
    monkeypatch.setattr(command, "commit", lambda: "aaaaaaaaaaaa")
    monkeypatch.setattr(command, "last_engine_change", lambda: None)
    monkeypatch.setattr(command, "PACKAGES", ())
    monkeypatch.setattr(command, "sample_rates", lambda threads: Rates(41e9, 472e9, "vnni"))
    monkeypatch.setattr(command, "available_memory_bytes", lambda: 64 << 30)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    folder = [f"{name}={tmp_path / name[2:]}" for name in ("--docs", "--results")]
    return [*folder, f"--environments={tmp_path / 'build' / 'peers'}"]


class Measuring:
    """In place of a comparison: writes a round of each work, then the rest, and fails as it is told."""

    def __init__(self, fail: Callable[[str], None] = lambda moment: None) -> None:
        self.fail = fail
        self.names: list[str] = []

    def __call__(self, arguments: Sequence[str]) -> dict[str, Any]:
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        path = Path(given["--out"])
        self.names.append(path.stem)
        (run,) = [
            run
            for run in chosen_runs([given["--model"]], None, quick=False)
            if run.works[0].context_tokens == int(given["--prompt"])
        ]
        rates = {work.name: 10.0 for work in run.works}
        peers = dict.fromkeys(given["--peers"].split(","), rates)
        result = comparison({"redoubt": rates, **peers}, model=run.model, repeats=int(given["--repeats"]))
        for rounds in range(result["repeats"] + 1):
            self.fail(f"{run.name} {rounds}")
            result["rounds_finished"] = rounds
            path.write_text(json.dumps(result))
        return result


def table(folders: list[str], measuring: Measuring, *arguments: str) -> int:
    return command.measure_and_render(command.parse([*folders, *MACHINE, *arguments]), measuring)


def results_of(folders: list[str]) -> dict[str, int]:
    folder = Path(folders[1].partition("=")[2])
    return {path.stem: json.loads(path.read_text())["rounds_finished"] for path in folder.glob("*.json")}


def test_all_is_measured_once(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert table(folders, first := Measuring()) == 0
    rounds = {"embedded": 3, "1.1b": 2, "1.1b-8192": 1, "qwen3-8b": 2}
    assert results_of(folders) == {f"compare-{name}-zen4-2-threads": number for name, number in rounds.items()}
    assert len(first.names) == 4
    printed = capsys.readouterr()
    assert "Zen 4, 2 threads" in printed.err
    assert "embedded: 3 rounds beside llama_cpp" in printed.err
    assert "llama.cpp (is compiled" in printed.err
    assert "minutes in all, and what installing takes, until" in printed.err
    assert "| Qwen3-8B, prompt of 512 | 1.00 |" in printed.out
    assert table(folders, second := Measuring()) == 0
    assert second.names == []
    assert "is measured with this code already" in capsys.readouterr().err
    assert table(folders, third := Measuring(), "--again", "--models", "8b") == 0
    assert third.names == ["compare-8b-zen4-2-threads"]


def interrupt(moment: str) -> Callable[[str], None]:
    def fail(now: str) -> None:
        if now == moment:
            raise KeyboardInterrupt

    return fail


def test_an_interrupted_run_keeps_its_rounds_and_goes_on(
    folders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(folders, Measuring(interrupt("1.1b 2"))) == 130
    assert results_of(folders) == {"compare-embedded-zen4-2-threads": 3, "compare-1.1b-zen4-2-threads": 1}
    printed = capsys.readouterr()
    assert "interrupted; the same command goes on" in printed.err
    assert "| 1.1B, one answer | 1.00 |" in printed.out
    assert table(folders, rest := Measuring()) == 0
    assert [name.removesuffix("-zen4-2-threads") for name in rest.names] == [
        "compare-1.1b", "compare-1.1b-8192", "compare-qwen3-8b",
    ]  # fmt: skip


def test_a_round_that_was_not_finished_takes_nothing_away(folders: list[str]) -> None:
    assert table(folders, Measuring(), "--models", "8b") == 0
    for moment in ("8b 0", "8b 1", "8b 2"):
        assert table(folders, Measuring(interrupt(moment)), "--models", "8b", "--again") == 130
        assert results_of(folders) == {"compare-8b-zen4-2-threads": 2}


def test_what_was_killed_leaves_its_rounds_to_the_next(folders: list[str], tmp_path: Path) -> None:
    left = comparison({"redoubt": {PROMPT: 1.0, ONE: 1.0}}, model="8b", repeats=2, rounds_finished=1)
    write(tmp_path / "build" / "table", "8b-zen4-2-threads", left)
    assert table(folders, measuring := Measuring(interrupt("8b 0")), "--models", "8b") == 130
    assert len(measuring.names) == 1
    assert results_of(folders) == {"compare-8b-zen4-2-threads": 1}
    (tmp_path / "build" / "table" / "compare-8b-zen4-2-threads.json").write_text('{"rounds_fin')
    assert table(folders, Measuring(), "--models", "8b") == 0


def test_a_run_that_fails_does_not_stop_the_others(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def fail(now: str) -> None:
        if now == "embedded 0":
            raise CrashError("has ended")

    assert table(folders, Measuring(fail)) == 2
    assert len(results_of(folders)) == 3
    assert "redoubt: embedded was not measured: has ended" in capsys.readouterr().err


def test_what_does_not_fit_is_left_out(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "available_memory_bytes", lambda: 5 << 30)
    assert table(folders, measuring := Measuring()) == 1
    assert len(measuring.names) == 3
    assert "8b: left out: needs 5.6 GB of memory, 5.4 GB are free" in capsys.readouterr().err
    monkeypatch.setattr(command, "available_memory_bytes", lambda: 20 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert table(folders, measuring := Measuring(), "--models", "8b") == 1
    assert measuring.names == []
    assert "its files need 9.0 GB of disk, 1.0 GB are free" in capsys.readouterr().err


def test_peers_without_memory_are_said_before(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "available_memory_bytes", lambda: 16 << 30)
    table(folders, Measuring(), "--models", "8b", "--quick")
    said = capsys.readouterr().err
    assert "8b: 1 round beside llama_cpp (no memory for ik_llama_cpp, openvino_genai): about" in said


def test_a_missing_peer_is_status_1_as_long_as_it_is_missing(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = chosen_runs(["8b"], None, quick=False)
    rates = {work.name: 10.0 for work in run.works}
    engines = {"redoubt": rates, **dict.fromkeys(run.peers[:-1], rates)}

    def left(reason: str) -> None:
        missing = {run.peers[-1]: reason}
        result = comparison(engines, model="8b", commit="aaaaaaaaaaaa", missing=missing)
        write(tmp_path / "results", "8b-zen4-2-threads", result)

    left("needs about 9.9 GB of memory, 5.0 GB are free: not run")
    assert table(folders, measuring := Measuring(), "--models", "8b") == 1
    assert measuring.names == []
    assert f"measured with this code already, without {run.peers[-1]}" in capsys.readouterr().err
    left("pip ended with 1")
    assert table(folders, measuring := Measuring(), "--models", "8b") == 0
    assert len(measuring.names) == 1


def test_a_run_with_fewer_peers_says_which_it_lacks(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    details = tmp_path / "docs" / "benchmark-details.md"
    assert table(folders, Measuring(), "--models", "8b") == 0
    for _ in range(2):
        assert table(folders, Measuring(), "--models", "8b", "--again", "--peers", "llama_cpp,ik_llama_cpp") == 0
        printed = capsys.readouterr().out
        assert "| 8B, prompt of 512 | 1.00 ‡ |" in printed
        assert "‡ beside fewer peers" in printed
        assert ", without OpenVINO GenAI |" in details.read_text(encoding="utf-8")
    assert table(folders, Measuring(), "--models", "8b", "--again") == 0
    assert "| 8B, prompt of 512 | 1.00 |" in capsys.readouterr().out


def test_rendering_measures_nothing(folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "results", "a", comparison({"redoubt": {ONE: 60.0}, "llama_cpp": {ONE: 30.0}}))
    assert command.main([*folders, "--render"]) == 0
    assert "| 1.1B, one answer | 2.00 |" in capsys.readouterr().out
    texts = [path.read_text() for path in sorted(tmp_path.glob("*/*.md"))]
    assert all("compare-a" in text or "one answer" in text for text in texts)
    assert command.main([*folders, "--render"]) == 0
    assert "written" not in capsys.readouterr().err


def test_an_installed_package_prints_the_table_alone(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*folders, "--docs=/nowhere", "--render"]) == 0
    assert "is not known here" in capsys.readouterr().out


def test_a_folder_of_results_has_to_be_named_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse(["--render", "--results", str(tmp_path / "none")])
    assert ended.value.code == 2
    assert "none is no folder: name the one for the JSONs" in capsys.readouterr().err


def test_a_bad_folder_of_results_is_said_before_anything_runs(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results" / "compare-x.json").write_text("{")
    assert command.main([*folders, *MACHINE]) == 2
    message = capsys.readouterr().err
    assert message.startswith("redoubt: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "70b"], "there is no '70b'; choose of embedded,"),
        (["--models", ""], "name a model"),
        (["--peers", "llama"], "there is no 'llama'; choose of llama_cpp,"),
        (["--machine", "a|b"], "without |"),
        (["--threads", "0"], "must be at least 1"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(arguments)
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_what_is_published_has_no_folders_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "compare", lambda options, works: {"command": options.arguments, "works": works})
    (run,) = chosen_runs(["8b"], None, quick=False)
    arguments = [*run.arguments(2, tmp_path / "x.json"), "--environments", str(tmp_path / "peers")]
    result = command.run_compare(arguments)
    assert result["works"] == run.works
    assert str(tmp_path) not in shown_command(result["command"])
    assert shown_command(result["command"]).endswith("--out x.json --environments peers")


def test_the_packages_of_the_extra_are_needed(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PACKAGES", ("no_such_package",))
    assert command.main([*folders, *MACHINE]) == 2
    assert "install the extra `bench`" in capsys.readouterr().err


def test_defaults_are_the_repositorys(capsys: pytest.CaptureFixture[str]) -> None:
    options = command.parse([])
    assert options.results == ROOT / "bench" / "results"
    assert options.docs == ROOT / "docs"
    assert options.models == ["embedded", "1.1b", "qwen3-8b"]
    assert FACTS["name"] == "Zen 4"
