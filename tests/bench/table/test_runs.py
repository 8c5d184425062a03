import json
from pathlib import Path
from typing import Any

import pytest

from bench import compare
from bench.models import BenchModel, weights_of
from bench.rates import Rates
from bench.table.pages import SHORT
from bench.table.results import Machine
from bench.table.runs import (
    RUNS,
    SPEEDS,
    Run,
    chosen_runs,
    estimated_s,
    is_finished,
    peers_that_fit,
    unmade_bytes,
)
from bench.work import works
from tests.bench.table.samples import ONE, PROMPT, comparison

RUN = Run("small", "1.1b", (512,), (1,), 128, 2, ("a", "b"))
ZEN4_OF_TWO_CORES = Rates(41e9, 472e9, "vnni")


def test_the_runs_measure_every_row_of_the_short_table() -> None:
    measured = {(run.model, work.name) for run in RUNS for work in run.works}
    assert {(model, work) for model, works in SHORT.items() for work in works} <= measured


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_is_a_command_of_compare(run: Run, tmp_path: Path) -> None:
    arguments = [*run.arguments(2, tmp_path / "x.json"), "--environments", str(tmp_path)]
    options = compare.parse(arguments)
    todo = works(options.prompt, options.decode_context, options.generate, options.batch, options.context)
    assert todo == run.works
    assert (options.model, options.repeats, tuple(options.peers)) == (run.model, run.repeats, run.peers)
    assert options.tuning_tokens == run.tuning_tokens


def test_files_are_named_after_the_machine() -> None:
    assert RUNS[1].file(Machine("Zen 4", 2)) == "compare-1.1b-zen4-2-threads.json"
    name = RUNS[0].file(Machine("Xeon (Emerald Rapids) without AMX", 16))
    assert name == "compare-embedded-xeon-emerald-rapids-without-amx-16-threads.json"


def test_runs_are_chosen_by_model() -> None:
    assert [run.name for run in chosen_runs(["1.1b"], None, quick=False)] == ["1.1b", "1.1b-8192"]
    (run,) = chosen_runs(["8b"], ["llama_cpp"], quick=True)
    assert (run.repeats, run.peers) == (1, ("llama_cpp",))


def finished(tmp_path: Path, commit: str = "now", code_at: str | None = "t1", **changes: Any) -> bool:
    rates = {"redoubt": {PROMPT: 2.0, ONE: 1.0}, "a": {PROMPT: 1.0}}
    lasting = {"missing": {"b": "needs about 9.0 GB of memory, 5.0 GB are free: not run"}}
    result = comparison(rates, **{**lasting, "code_at": "t1", "commit": "then", **changes})
    (tmp_path / "x.json").write_text(json.dumps(result))
    return is_finished(tmp_path / "x.json", RUN, commit, code_at)


def test_what_todays_engine_measured_is_finished(tmp_path: Path) -> None:
    assert finished(tmp_path)
    assert finished(tmp_path, commit="then", code_at=None)
    assert not finished(tmp_path, code_at="t2")
    assert not finished(tmp_path, code_at=None)
    assert not finished(tmp_path, commit="now-dirty")
    assert not finished(tmp_path, rounds_finished=1)
    assert not finished(tmp_path, works={ONE: {}})
    assert not finished(tmp_path, missing={"b": "pip ended with 1: no network"})
    assert not finished(tmp_path, missing={})
    assert not finished(tmp_path, engines={})
    assert not is_finished(tmp_path / "nothing", RUN, "now", "t1")
    (tmp_path / "x.json").write_text("{")
    assert not is_finished(tmp_path / "x.json", RUN, "now", "t1")


def test_estimates_know_what_costs_time() -> None:
    assert set(SPEEDS) == {"redoubt", *compare.PEER_NAMES}
    times = {run.name: estimated_s(run, weights_of(run.model), ZEN4_OF_TWO_CORES) for run in RUNS}
    assert 3 * 60 < times["embedded"] < times["1.1b"] < 20 * 60
    fast = Rates(4 * 41e9, 4 * 472e9, "vnni")
    assert all(estimated_s(run, weights_of(run.model), fast) < times[run.name] for run in RUNS)
    (quick,) = chosen_runs(["8b"], None, quick=True)
    assert estimated_s(quick, weights_of("8b"), ZEN4_OF_TWO_CORES) < times["8b"]
    unknown = estimated_s(quick, weights_of("8b"), Rates(41e9, 0.0, "fma_fp32"))
    assert unknown > times["8b"]


def test_weights_are_those_a_token_needs() -> None:
    millions = {name: weights_of(name) // 1_000_000 for name in ("embedded", "1.1b", "7b", "8b")}
    assert millions == {"embedded": 134, "1.1b": 1034, "7b": 6607, "8b": 7504}


def test_peers_fit_beside_those_before_them() -> None:
    gigabyte = 10**9
    sizes = {"a": 1.0, "b": 3.0}
    assert peers_that_fit(RUN, gigabyte, 6 * gigabyte, sizes) == ("a", "b")
    assert peers_that_fit(RUN, gigabyte, 5 * gigabyte, sizes) == ("a",)
    assert peers_that_fit(RUN, gigabyte, gigabyte, sizes) == ()


def test_files_that_are_there_take_no_more_disk(tmp_path: Path) -> None:
    model = BenchModel("8b", tmp_path / "packed", tmp_path / "a.gguf", tmp_path / "hf")
    assert unmade_bytes(model, 1000, ("llama_cpp",)) == 1200
    assert unmade_bytes(model, 1000, ("vllm_cpu",)) == 3200
    model.gguf.touch()
    model.packed.mkdir()
    (model.packed / "config.json").touch()
    assert unmade_bytes(model, 1000, ("llama_cpp",)) == 0
