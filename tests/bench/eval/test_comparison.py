"""Comparisons of results: what is paired with what, what is refused, and the tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.eval import command
from bench.eval.comparison import compare, read_results
from bench.eval.comparison_page import conversion, tables, with_comparison
from bench.eval.errors import EvalError


def task(model: str, right: str, what: str = "piqa", **more: Any) -> dict[str, Any]:
    share = right.count("1") / len(right)
    return {
        "model": model, "qtype": "sym_int4", "group_size": 64, "unquantized": model == "x.gguf", "what": what,
        "tier": "scalar", "tasks": len(right), "acc": share, "acc_stderr": 0.1, "acc_norm": share,
        "acc_norm_stderr": 0.1, "right": {"acc": right, "acc_norm": right},
    } | more  # fmt: skip


def test_each_is_paired_with_the_unquantized_checkpoint() -> None:
    result = compare([task("a/sym_int4-g64-rtn", "1100"), task("x.gguf", "1110"), task("x.gguf", "01", "lambada")])
    assert [row["name"] for row in result["rows"]] == ["unquantized", "sym_int4-g64-rtn"]
    assert result["settings"] == {"piqa": {"tasks": 4}, "lambada": {"tasks": 2}}
    base, other = (row["results"]["piqa"] for row in result["rows"])
    assert "against_baseline" not in base
    assert other["against_baseline"]["difference"] == -0.25
    assert (other["against_baseline"]["lost"], other["against_baseline"]["won"]) == (1, 0)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([task("a", "1")], "piqa: no result of the unquantized checkpoint to compare a with"),
        ([task("x.gguf", "1"), task("a", "10")], "a was measured with {'tasks': 2}, another with {'tasks': 1}"),
        (
            [task("x.gguf", "1"), task("a", "1") | {"right": {"acc_norm": "10"}}],
            "a can't be compared with x.gguf: .*1 and 2",
        ),
    ],
)
def test_refusals(results: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(EvalError, match=message):
        compare(results)


def test_lines_that_are_no_results_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps(task("a", "1")) + '\n{"what": "longbench", "model": "a"}\n')
    with pytest.raises(EvalError, match="x: line 2 is no result"):
        read_results([tmp_path / "x"])


def test_names_of_conversions() -> None:
    assert conversion("sym_int4-g64-gptq") == "`sym_int4`, 64, `gptq`"
    assert conversion("sym_int4-gchannel-rtn") == "`sym_int4`, a row, `rtn`"
    assert conversion("mine") == "mine"


@pytest.fixture(scope="module")
def results(checkpoint: Path, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a result of each kind."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "text.txt").write_text("It was the best of times, it was the worst of times. " * 8)
    (folder / "dev.jsonl").write_text(
        json.dumps({"goal": "Warm the soup.", "sol1": "On the stove.", "sol2": "On the roof.", "label": 0}) + "\n"
    )
    (folder / "data").mkdir()
    (folder / "data" / "trec.jsonl").write_text(json.dumps({"context": "A long text. " * 9}) + "\n")
    for split in ("dev", "val"):
        (folder / "exam" / split).mkdir(parents=True)
        for subject in ("law", "physician"):
            lines = "id,question,A,B,C,D,answer\n0,q,a,b,c,d,A\n1,q,a,b,c,d,B\n"
            (folder / "exam" / split / f"{subject}_{split}.csv").write_text(lines)
    (folder / "sym_int4-g32-rtn").symlink_to(packed)
    both = [checkpoint, folder / "sym_int4-g32-rtn"]
    runs = [
        ["kl", both[1], "--baseline", checkpoint, "--text", folder / "text.txt", "--context", 40, "--windows", 3],
        ["weights", both[1], "--baseline", checkpoint],
        ["piqa", *both, "--tasks", folder / "dev.jsonl"],
        ["longbench-perplexity", *both, "--data", folder / "data", "--context", 40],
        ["ceval", *both, "--data", folder / "exam"],
    ]
    with pytest.MonkeyPatch.context() as patch, (folder / "results.jsonl").open("w") as file:
        patch.setenv("REDOUBT_CACHE", str(folder / "cache"))
        patch.setattr("sys.stdout", file)
        for run in runs:
            assert command.main([*map(str, run), "--threads", "1", "--json"]) == 0
    return folder / "results.jsonl"


def test_a_page_of_real_results(results: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "mine.json", tmp_path / "page.md"
    page.write_text("# Title\n<!-- mine begins -->\nold\n<!-- mine ends -->\nrest")
    assert command.main(["compare", str(results), "--out", str(out), "--model", "tiny", "--note", "a note"]) == 0
    assert command.main(["page", str(out), "--page", str(page)]) == 0
    comparison = json.loads(out.read_text())
    assert comparison["notes"] == ["a note"]
    row = comparison["rows"][1]
    moved, kl = row["results"]["weights"], row["results"]["kl"]
    assert abs(kl["perplexity_increase"]) < 5 * kl["perplexity_increase_stderr"] < 1
    text = page.read_text()
    assert text.startswith("# Title\n<!-- mine begins -->\n\ntiny; ")
    assert text.endswith("<!-- mine ends -->\nrest")
    assert "old" not in text
    assert f"| `sym_int4`, 32, `rtn` | 4.50 | {moved['relative_rms']:.2%} | {kl['perplexity_increase']:+.1%} ±" in text
    long = row["results"]["longbench-perplexity"]
    assert f"| {long['perplexity']:.3f} ± {long['perplexity_stderr']:.2f} |" in text
    assert "| 5.5676 (+5.63%) |" in text
    assert "| weights | Humanities | Other | Average | all questions against unquantized |" in text
    columns = [{line.count("|") for line in part.splitlines()} for part in text.split("\n\n") if part.startswith("|")]
    assert all(len(each) == 1 for each in columns)
    assert command.main(["page", str(out), "--page", str(results)]) == 2


def test_a_set_that_a_row_lacks_is_left_empty() -> None:
    rows = [task("x.gguf", "1"), task("a", "1"), task("x.gguf", "11", "lambada", perplexity=9.96)]
    comparison = compare(rows) | {"model": "tiny", "cpu": "none", "commit": "0"}
    base, other = tables(comparison).splitlines()[-2:]
    assert base.endswith("| 100.0% ± 10.0 | 10.0 |")
    assert other == "| a | 100.0% (+0.0 ± 0.0, p = 1) |  |  |"
    with pytest.raises(ValueError, match="the page has no <!-- x begins -->"):
        with_comparison("", "x", comparison)


def test_weights_of_what_is_not_converted_are_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["weights", str(checkpoint), "--baseline", str(checkpoint)]) == 2
    assert "is no converted model" in capsys.readouterr().err
