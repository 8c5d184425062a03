"""`redoubt bench published`: what it runs, what it leaves, and the page that it writes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.processor import this_processor
from bench.published import command, papers, quality, thesis
from bench.published.page import TABLES
from bench.published.results import File, Results, sources, spread

ZEN_3 = {"machine": {"name": "Zen 3"}, "threads": 2, "measured_at": "2026-12-01T00:00:00+00:00"}
OTHER = {**ZEN_3, "machine": {"name": "a machine that this is not"}}


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


def keep(folder: Path, stem: str, result: object) -> Results:
    (folder / f"{stem}.json").write_text(json.dumps(result))
    return Results(folder)


def test_what_is_missing_is_measured_and_the_rest_goes_on(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*arguments, "--list"]) == 0
    assert capfd.readouterr().out.count("is not there") == 2
    assert command.main(arguments) == 1
    said = capfd.readouterr().err
    assert "gains-embedded: ended with status 3" in said
    assert not list(tmp_path.glob("*.partial"))
    (file,) = Results(tmp_path).of("kv-error-embedded")
    assert file.stem in (tmp_path / "page.md").read_text()
    assert command.main([*arguments, "--only", "kv-error"]) == 0
    assert "kv-error" not in capfd.readouterr().err
    assert command.main([*arguments, "--only", "kv-error", "--since", "2099-01-01"]) == 0
    assert "does not say when" in capfd.readouterr().err


def test_a_result_says_where_when_and_how_it_was_measured(arguments: list[str], tmp_path: Path) -> None:
    assert command.main([*arguments, "--only", "kv-error"]) == 0
    (file,) = Results(tmp_path).of("kv-error-embedded")
    assert file.result["schemes"] == {}
    assert file.machine == this_processor().name
    assert file.result["commit"]
    assert file.result["measured_at"][:2] == "20"
    assert file.result["command"].startswith("python -c ")


def test_what_prints_no_json_is_said_and_leaves_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "COMMANDS", {"kv-error-embedded": ("python", "-c", "print('no')")})
    assert command.main(arguments) == 1
    assert "what it printed is no JSON" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_an_interrupted_command_leaves_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    assert command.main([*arguments, "--only", "kv-error"]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_the_file_of_another_machine_is_not_this_machines(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, "gains-embedded-other", {**OTHER, "rows": []})
    keep(tmp_path, "kv-error-embedded", {**OTHER, "schemes": {}})
    assert command.main([*arguments, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("kv-error-embedded: is there: "), "its figures are the same everywhere"
    assert lines[1].startswith("gains-embedded: is there of other machines only: ")
    assert str(tmp_path / "gains-embedded-other.json") not in lines[1]
    keep(tmp_path, "gains-embedded-here", {**OTHER, "machine": {"name": this_processor().name}, "rows": []})
    assert command.main([*arguments, "--list", "--only", "gains"]) == 0
    assert capsys.readouterr().out.startswith("gains-embedded: is there: ")


def test_again_is_handed_to_commands_that_keep_what_they_have(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    assert command.main([*arguments, "--list", "--again", "--only", "original-1.1b,quality-methods,gains"]) == 0
    original, methods, gains = capsys.readouterr().out.splitlines()
    assert original.endswith(" --again")
    assert methods.endswith(" --again")
    assert "--again" not in gains


def test_without_its_data_nothing_is_run(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        "quality-x": ("python", "-c", "raise SystemExit(9)", "DATA/text.txt", "OUT"),
        "gains-x": ("python", "-c", "raise SystemExit(9)", "CONVERSATIONS", "OUT"),
    }
    monkeypatch.setattr(command, "COMMANDS", commands)
    places = ["--data", str(tmp_path / "sets"), "--conversations", str(tmp_path / "talk.json")]
    assert command.main([*arguments, *places]) == 1
    said = capsys.readouterr().err
    assert f"quality-x is not measured: there is no {tmp_path}/sets/text.txt; docs/quality.md" in said
    assert f"gains-x is not measured: there is no {tmp_path}/talk.json" in said
    assert "status 9" not in said


def test_what_is_wrong_is_one_line(arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kv-error-embedded.json").write_text("{")
    assert command.main([*arguments, "--page-only"]) == 2
    assert "measure it again or remove it" in capfd.readouterr().err
    (tmp_path / "kv-error-embedded.json").write_text(json.dumps({"schemes": {}}))
    (tmp_path / "page.md").write_text("")
    assert command.main([*arguments, "--page-only"]) == 2
    assert "<!-- summary begins -->" in capfd.readouterr().err


def test_a_new_machine_is_shown_beside_the_old_one_under_its_own_name(tmp_path: Path) -> None:
    def kernels(time_s: float) -> dict[str, Any]:
        facts = {"batch": 1, "median_seconds": time_s, "share_of_read_rate": 1.0}
        return {"results": [{"case": f"{case}-4096x4096-g64", **facts} for case in ("sym_int4", "int8")]}

    keep(tmp_path, "kernels-4096x4096", {"cpu": "AMD EPYC", "threads": 2, **kernels(0.5)})
    keep(tmp_path, "kernels-4096x4096-zen4-avx2", {"cpu": "AMD EPYC", "threads": 1, **kernels(0.7)})
    results = keep(tmp_path, "kernels-4096x4096-zen3", {**ZEN_3, **kernels(0.25)})
    lines = papers.batches(results)
    assert [line for line in lines if line.endswith("threads:")] == ["Zen 3, 2 threads:", "Zen 4, 2 threads:"]
    assert [cells.split(" | ")[2] for cells in lines if cells.startswith("| 1 ")] == ["250 ms", "500 ms"]
    told = sources(results.shown("kernels-4096x4096"))
    assert [line.split(": ")[1].split(";")[0] for line in told] == ["Zen 4, 2 threads", "Zen 3, 2 threads"]
    assert File("stages-embedded-zen3", {"cpu": "AMD EPYC"}).machine == "AMD EPYC", "not a committed file's Zen 4"
    assert File("kernels-4096x4096", {"cpu": "new", "measured_at": "2026-12-01"}).machine == ""


def test_a_machines_newest_result_counts(tmp_path: Path) -> None:
    keep(tmp_path, "stages-embedded-zen4", {"cpu": "AMD EPYC", "threads": 2})
    results = keep(tmp_path, "stages-embedded-zen4-2", {**ZEN_3, "machine": {"name": "Zen 4"}})
    assert [file.stem for file in results.shown("stages-embedded")] == ["stages-embedded-zen4-2"]


def test_runs_of_one_file_are_told_apart(tmp_path: Path) -> None:
    one = {"inputs": {}, "commit": "abc0000", "measured_at": "2026-11-01T00", "command": "x --types int8,fp32"}
    types = {"int8": one, "bf16": {**one, "command": "y"}, "fp16": {"left_out": "needs 9 GB"}}
    (line,) = sources([File("original-1.1b", {**ZEN_3, "types": types})])
    assert "int8, 2026-11-01, commit abc0000: `x --types int8,fp32`; bf16, 2026-11-01, commit abc0000: `y`" in line
    assert "without fp16, for lack of memory; asked for and not measured: fp32" in line


def original(**more: Any) -> dict[str, Any]:
    def one(scale: float) -> dict[str, Any]:
        times = {"first_token_s": scale, "next_token_s": scale / 100, "response_s": {"32": 2 * scale}}
        return {"resident_bytes": 2**20, "load_s": 1.0, "inputs": {"32": times, "1024": {**times}}}

    types = {"sym_int4": one(1.0), "torch-fp32": one(4.0)}
    return {**ZEN_3, "shape": "x-1.1b", "inputs": [32, 1024], "outputs": [32], "types": types, **more}


def test_what_is_withdrawn_is_not_shown(tmp_path: Path) -> None:
    withdrawn = {"types": ["sym_int4"], "inputs": ["1024"], "why": "too fast"}
    results = keep(tmp_path, "original-1.1b-zen3", original(withdrawn=withdrawn))
    rows = {line.split(" | ")[0]: line for line in thesis.response(results)}
    assert rows["| 32 in, 32 out"].endswith("| 8.00 s | 2.00 s | 0.25 | — |")
    assert rows["| 1024 in, 32 out"].endswith("| 8.00 s | — | — | — |")
    assert "**withdrawn**: too fast" in sources(results.of("original-1.1b"))[0]
    assert (
        thesis.response(results)[-1]
        == "**Theirs takes about half of fp32's time; ours 0.25 to 0.25 of fp32's (1 cells).**"
    )


def test_first_tokens_are_a_row_each_where_they_were_kept(tmp_path: Path) -> None:
    result = original()
    result["types"]["sym_int4"]["inputs"]["1024"]["first_times_s"] = [1.0, 0.02, 0.03]
    lines = thesis.tokens(keep(tmp_path, "original-1.1b-zen3", result))
    assert lines[-3:-2] == ["| time of token | 1 | 2 | 3 |"]
    assert lines[-1] == "| 1.1B, Zen 3, 1,024 in: sym_int4 | 1.00 s | 20 ms | 30 ms |"


def test_confidential_names_the_lengths_of_its_file(tmp_path: Path) -> None:
    two = {"plain": {"1": 0.1}, "attested": {"1": 0.11}}
    result = {
        **ZEN_3, "prompt": 32, "generate": 128, "evidence": "soft", "load_s": {"folder_copied": 1.0, "sealed": 1.5},
        "first_token_s": {"plain": 1.0, "attested": 1.2}, "next_token_s": two,
    }  # fmt: skip
    results = keep(tmp_path, "confidential-embedded-zen3", result)
    head, _, load, first, _ = thesis.confidential(results)
    assert "ours, 135M, 32 in, 128 out, Zen 3: plain" in head
    assert load.endswith("| 1.774 s | 4.557 s | 2.57 | 1.00 s | 1.50 s | 1.50 |")
    assert first.endswith("| 1.00 s | 1.20 s | 1.20 |")
    assert "first token +20 %, next token +10 %" in thesis.summary(results)[-1]


def test_rounds_that_were_disturbed_are_marked() -> None:
    assert spread({"median": 1.2, "lowest": 1.0, "highest": 1.3}) == "1.20 (1.00 to 1.30)"
    assert spread({"median": 1.2, "lowest": 1.0, "highest": 1.5}) == "~ 1.20 (1.00 to 1.50)"


def test_first_tokens_of_a_machines_files_are_one_table(tmp_path: Path) -> None:
    def rows(*cells: tuple[int, int]) -> dict[str, Any]:
        time_s = {"median": 0.5, "lowest": 0.5, "highest": 0.5}
        return {**ZEN_3, "rows": [{"prompt_tokens": n, "users": users, "first_token_s": time_s} for n, users in cells]}

    keep(tmp_path, "loads-first-token-embedded-zen3", rows((8, 1), (2032, 1)))
    results = keep(tmp_path, "loads-first-token-embedded-768-users-zen3", rows((8, 768)))
    lines = papers.first_token(results)
    assert lines[0].endswith("| ours: 1 user | ours: 768 users |")
    assert "| 8 | 6.78 ms; 768 users: 165 ms | 500 ms | 500 ms |" in lines
    assert lines[-1] == "| 2,032 | 2078 ms (2,048 in) | 500 ms | — |"


def test_a_machines_threads_make_another_column(tmp_path: Path) -> None:
    def file(threads: int, times: float) -> dict[str, Any]:
        ratio = {"response_s": {"median": times, "lowest": times, "highest": times}}
        row = {"prompt_tokens": 32, "users": 1, "its_over_ours": ratio}
        return {**ZEN_3, "threads": threads, "model": "135M", "rows": [row]}

    name = papers.LENGTHS[0]
    keep(tmp_path, f"{name}-zen3", file(2, 1.5))
    lines = papers.beside_llama_cpp(keep(tmp_path, f"{name}-zen3-16", file(16, 2.5)))
    assert lines[0].endswith("| ours: 135M, Zen 3, 16 threads, 1 at once | ours: 135M, Zen 3, 2 threads, 1 at once |")
    assert "| 32 in, whole answer | 1.76 to 3.43 | 2.50 | 1.50 |" in lines


def test_kernel_waits_are_shown_with_and_without_the_other_checkout(tmp_path: Path) -> None:
    one = {"waits_share": 0.1, "waits_us": 300.0, "step_us": 3000.0, "tokens_per_s": 110.0, "fill_us": 200.0,
           "deliver_us": 50.0, "call_us": 60.0}  # fmt: skip
    before = {**one, "waits_share": 0.2, "tokens_per_s": 100.0}
    streams = {"streams": {"16": {"this": one, "against": before}}}
    results = keep(tmp_path, "kernel-waits-embedded-zen3", {**ZEN_3, "results": streams})
    head, _, row = papers.kernel_waits(results)
    assert "delivered beside the next step | waited, delivered between two steps, as before" in head
    assert row.startswith("| that stream to a reader | 16 | 10.0% of 3 ms | 20.0% of 3 ms | +10.0 % tokens/s | ")
    assert row.endswith("filling arrays 200 µs, the call and Python's lock 60 µs |")
    results = keep(tmp_path, "kernel-waits-embedded-zen3", {**ZEN_3, "results": {"alone": {"1": {"this": one}}}})
    assert papers.kernel_waits(results)[2].startswith("| that do nothing | 1 | 10.0% of 3 ms | — | ")


def test_answers_stand_under_their_prompts(tmp_path: Path) -> None:
    assert quality.answers(Results(tmp_path)) == ["Not measured yet."]
    rows = [{"prompt": "What is AI?", "answers": {"unquantized": "A\nfield | of", "sym_int4-g64-quick": "B"}}]
    lines = quality.answers(keep(tmp_path, "answers-smollm2-135m", {"rows": rows}))
    assert lines[-2:] == [
        "| What is AI? | ours: SmolLM2-135M, unquantized | A field \\| of |",
        "| What is AI? | ours: SmolLM2-135M, `sym_int4`, 64, `quick` | B |",
    ]


def test_methods_are_compared_on_the_same_tasks(tmp_path: Path) -> None:
    """Of 100 tasks of a set, `rtn` loses 10: a set's error is 3 points, half of that for the mean of four."""
    names = ("lambada", "piqa", "winogrande", "hellaswag")

    def row(name: str, right: int) -> dict[str, object]:
        found = {"acc": right / 100, "acc_norm": right / 100}
        digits = dict.fromkeys(found, "1" * right + "0" * (100 - right))
        return {"name": name, "results": {each: {**found, "right": digits} for each in names}}

    rows = [row("unquantized", 60), row("sym_int4-g64-rtn", 50), row("sym_int4-g64-quick", 60)]
    (tmp_path / "quality-methods-smollm2-135m.json").write_text(json.dumps({"rows": rows}))
    lines = quality.accuracy(Results(tmp_path))
    assert lines[3] == "| `sym_int4`, 64, `rtn` | 50.0% | 0.833 | 0.833 | -10.0 ± 1.5 | -10.0 ± 1.5 |"
    assert lines[4].endswith("| 60.0% | 1.000 | 1.000 | +0.0 ± 0.0 | — |")
