"""HellaSwag, JSONL and C-Eval: the files, the scores against whole forward passes, the summary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.eval import command
from bench.eval.choice_files import ceval_tasks, hellaswag_tasks, jsonl_tasks
from bench.eval.choices import ChoiceTask, EncodedTask, encode_task, score
from bench.eval.errors import EvalError
from quant.packed.native_model import NativeModel
from tests.quant.checkpoints import byte_tokenizer


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert command.main([*map(str, arguments), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def log_likelihood(model: NativeModel, context: list[int], continuation: list[int]) -> float:
    whole = context + continuation
    logits = np.concatenate([part for _, part in model.logits(whole)]).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(sum(logits[len(context) - 1 + i, token] for i, token in enumerate(continuation)))


@pytest.mark.parametrize("context_tokens", [1, 7, 16, 17, 40])
def test_scores_are_those_of_whole_passes(packed: Path, context_tokens: int) -> None:
    generator = np.random.default_rng(context_tokens)
    context = [int(token) for token in generator.integers(3, 250, context_tokens)]
    endings = [[int(token) for token in generator.integers(3, 250, size)] for size in (1, 30, 4, 9, 17, 2, 5)]
    with NativeModel(packed, context_tokens=80, branches=3, threads=1) as model:
        ours = score(model, EncodedTask(context, endings))
        assert ours == pytest.approx([log_likelihood(model, context, ending) for ending in endings], rel=1e-5)


def test_a_context_too_long_loses_its_beginning(packed: Path) -> None:
    context, ending = list(range(3, 60)), [[5, 6], [7, 8]]
    with NativeModel(packed, context_tokens=20, branches=2, threads=1) as model:
        assert score(model, EncodedTask(context, ending)) == score(model, EncodedTask(context[-18:], ending))


def test_spaces_belong_to_the_continuation() -> None:
    tokenizer = byte_tokenizer()
    assert encode_task(tokenizer, ChoiceTask("ab  ", ("c", "d"), 0)) == EncodedTask(
        tokenizer.encode("ab").ids, [tokenizer.encode("  c").ids, tokenizer.encode("  d").ids]
    )
    with pytest.raises(EvalError, match="empty"):
        encode_task(tokenizer, ChoiceTask(" ", ("c", "d"), 0))


def test_what_a_tokenizer_puts_first_comes_first() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    plain = encode_task(tokenizer, ChoiceTask("ab", (" c", " d"), 0))
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    with_bos = encode_task(tokenizer, ChoiceTask("ab", (" c", " d"), 0))
    assert with_bos == EncodedTask([1, *plain.context], plain.continuations)


def test_hellaswag(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hellaswag.txt"
    path.write_text(("A man sits.\n2\nhe a\nhe longer one\nhe x\nhe the\n" * 3) + "\n")
    tasks = hellaswag_tasks(path)
    assert tasks[0] == ChoiceTask("A man sits.", (" he a", " he longer one", " he x", " he the"), 2)
    result = run(capsys, "hellaswag", packed, "--tasks", path)
    tokenizer = Tokenizer.from_file(str(packed / "tokenizer.json"))
    encoded = encode_task(tokenizer, tasks[0])
    with NativeModel(packed, context_tokens=64, threads=1) as model:
        values = [log_likelihood(model, encoded.context, part) for part in encoded.continuations]
    best = np.argmax([value / size for value, size in zip(values, (4, 13, 4, 6), strict=True)])
    assert result["tasks"] == 3
    assert result["acc"] == float(np.argmax(values) == 2)
    assert result["acc_norm"] == float(best == 2)
    assert result["acc_stderr"] == 0
    assert run(capsys, "hellaswag", packed, "--tasks", path, "--limit", 2)["tasks"] == 2


@pytest.mark.parametrize(
    ("content", "message"), [("a\nb\n", "has 2 lines"), ("a\n7\nb\nc\nd\ne\n", "line 2 is '7'"), ("", "has 0 lines")]
)
def test_a_damaged_hellaswag_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.txt").write_text(content)
    with pytest.raises(EvalError, match=message):
        hellaswag_tasks(tmp_path / "x.txt")


def test_json_lines(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    entries = [
        {"context": "2 + 2 =", "choices": ["3", "4"], "answer": 1},
        {"question": "3 + 3 =", "choices": ["6", "7", "8"], "answer": "A"},
    ]
    path.write_text("\n".join(map(json.dumps, entries)))
    assert jsonl_tasks(path) == [ChoiceTask("2 + 2 =", (" 3", " 4"), 1), ChoiceTask("3 + 3 =", (" 6", " 7", " 8"), 0)]
    assert run(capsys, "multiple-choice", packed, "--tasks", path)["tasks"] == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "not a JSON object"),
        ('{"choices": ["a", "b"], "answer": 0}', "lacks a context"),
        ('{"context": "x", "choices": ["a"], "answer": 0}', "fewer than two"),
        ('{"context": "x", "choices": ["a", ""], "answer": 0}', "not text"),
        ('{"context": "x", "choices": ["a", "b"], "answer": 2}', "none of its choices"),
        ('{"context": "x", "choices": ["a", "b"], "answer": true}', "none of its choices"),
        ("", "no question"),
    ],
)
def test_damaged_json_lines(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(EvalError, match=message):
        jsonl_tasks(tmp_path / "x.jsonl")


def write_ceval(folder: Path) -> Path:
    header = "id,question,A,B,C,D,answer"
    for split in ("dev", "val"):
        (folder / split).mkdir(parents=True)
        more = ",explanation" if split == "dev" else ""
        for subject in ("computer_network", "physics"):
            rows = [f'{i},"问题, {i}____。",甲,乙,丙,丁,{"ABCD"[i % 4]}{",因为" if more else ""}' for i in range(6)]
            (folder / split / f"{subject}_{split}.csv").write_text("\n".join([header + more, *rows]), encoding="utf-8")
    return folder


def test_ceval(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_ceval(tmp_path / "ceval")
    tasks = ceval_tasks(folder, "val", None)
    assert len(tasks) == 12
    assert tasks[1].context.endswith("问题, 1____。\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案：")
    assert tasks[1].context.count("答案：") == 6
    assert "答案：A\n\n" in tasks[1].context
    assert (tasks[1].continuations, tasks[1].answer, tasks[1].group) == (("A", "B", "C", "D"), 1, "computer_network")
    result = run(capsys, "ceval", packed, "--data", folder, "--limit", 2)
    assert set(result["groups"]) == {"computer_network", "physics"}
    assert result["acc"] == pytest.approx(result["acc_mean_of_groups"])


def test_ceval_without_answers(tmp_path: Path) -> None:
    folder = write_ceval(tmp_path / "ceval")
    (folder / "test").mkdir()
    (folder / "test/physics_test.csv").write_text("id,question,A,B,C,D\n0,q,a,b,c,d\n")
    with pytest.raises(EvalError, match="line 2 lacks answer"):
        ceval_tasks(folder, "test", None)
    with pytest.raises(EvalError, match="has no val/"):
        ceval_tasks(tmp_path, "val", None)
