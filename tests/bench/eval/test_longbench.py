"""LongBench: its metrics on worked examples, its files, prompts cut in the middle, a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.eval import command
from bench.eval.errors import EvalError
from bench.eval.long_metrics import (
    METRICS,
    classification,
    code_similarity,
    count,
    long_score,
    qa_f1,
    retrieval,
    rouge_l,
)
from bench.eval.longbench import ANSWER_TOKENS, LongModel, long_sets
from quant.packed.native_model import NativeModel


def test_question_f1() -> None:
    assert qa_f1("The Cat, sat.", "a cat sat") == 1
    assert qa_f1("a dog sat down here", "dog sat") == pytest.approx(2 * (2 / 4) * 1 / (2 / 4 + 1))
    assert qa_f1("no", "yes") == 0
    assert qa_f1("", "") == 0


def test_rouge_l() -> None:
    # The union of "w1 w2" and "w1 w3 w5" over five words (Lin 2004); the candidate has eight different ones.
    score = rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5")
    assert score == pytest.approx(2 * (4 / 8) * (4 / 5) / (4 / 8 + 4 / 5), abs=1e-7)
    assert rouge_l("police killed the gunman", "police kill the gunman") == pytest.approx(0.75, abs=1e-7)
    assert rouge_l("", "x") == rouge_l("...", "x") == 0


def test_classification() -> None:
    classes = ["Number", "Number of something", "Person", "Other"]
    assert classification("Number of something", "Number of something", classes) == 1
    assert classification("Person or Other", "Person", classes) == 0.5
    assert classification("Other", "Person", classes) == 0
    assert classification("nothing", "Person", classes) == 0


def test_numbers_and_code() -> None:
    assert retrieval("Paragraph 12", "Paragraph 12") == 1
    assert retrieval("Paragraph 1 or 12", "Paragraph 12") == 0.5
    assert count("there are 7", "7") == 1
    assert count("none", "7") == 0
    assert code_similarity("```\n# a comment\nreturn x\nmore", "return x") == 1
    assert code_similarity("abcd", "bcde") == 0.75
    assert code_similarity("# only", "return x") == 0


def test_the_best_reference_counts_and_some_sets_take_the_first_line() -> None:
    assert long_score("hotpotqa", "Paris", ["London", "paris"], []) == 1
    assert long_score("trec", "\nPerson\nType: Other", ["Person"], ["Person", "Other"]) == 1
    assert METRICS.keys() == ANSWER_TOKENS.keys()


def write_set(folder: Path, name: str, tasks: int = 2, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    entry = {
        "input": "Who? {context}",
        "context": "A long text. " * 20,
        "answers": ["Ann", "Bo"],
        "length": 60,
        "dataset": name,
        "language": "en",
        "all_classes": None,
        "_id": "0",
    }
    (folder / f"{name}.jsonl").write_text("\n".join([json.dumps(entry | changes)] * tasks))


def test_files(tmp_path: Path) -> None:
    write_set(tmp_path / "data", "hotpotqa")
    write_set(tmp_path / "data", "trec", all_classes=["x", "y"])
    ours = {each.name: each for each in long_sets(tmp_path / "data", None, [], None)}
    assert set(ours) == {"hotpotqa", "trec"}
    assert ours["trec"].tasks[0].classes == ("x", "y")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/dataset2prompt.json").write_text(json.dumps({"hotpotqa": "<{context}|{input}>"}))
    (tmp_path / "config/dataset2maxlen.json").write_text(json.dumps({"hotpotqa": 5}))
    (hotpot,) = long_sets(tmp_path / "data", tmp_path / "config", ["hotpotqa"], 1)
    assert hotpot.answer_tokens == 5
    assert [task.prompt for task in hotpot.tasks] == [f"<{'A long text. ' * 20}|Who? {{context}}>"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(EvalError, match=r"no SET\.jsonl"):
        long_sets(tmp_path, None, [], None)
    with pytest.raises(EvalError, match="'dureader' is not one of"):
        long_sets(tmp_path, None, ["dureader"], None)
    with pytest.raises(EvalError, match="can't be read"):
        long_sets(tmp_path, None, ["trec"], None)
    write_set(tmp_path, "trec", answers=[])
    with pytest.raises(EvalError, match="line 1 lacks"):
        long_sets(tmp_path, None, ["trec"], None)


def test_long_prompts_lose_their_middle(packed: Path) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(500))
    with NativeModel(packed, context_tokens=128, threads=1) as native:
        model = LongModel(packed, native)
        ids = model.prompt("trec", text, 100)
        decoded = model._tokenizer.decode(ids)
        assert decoded == text[:50] + text[-50:]
        with_template = model._tokenizer.decode(model.prompt("hotpotqa", text, 100), skip_special_tokens=False)
        assert len(with_template) <= 100
        assert text[:20] in with_template
        assert text[-20:] in with_template


def test_a_run(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path / "data", "hotpotqa")
    write_set(tmp_path / "data", "passage_count", answers=["3"])
    arguments = ["longbench", str(packed), "--data", str(tmp_path / "data"), "--context", "200", "--limit", "1"]
    assert command.main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["sets"]) == {"hotpotqa", "passage_count"}
    assert 0 <= result["score"] <= 100
    assert result["sets"]["hotpotqa"]["tasks"] == 1
    assert result["prompts"] == "redoubt"
