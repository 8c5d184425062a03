"""Multiple choice: the published files, the scores against whole forward passes, the summary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.eval import command
from bench.eval.ceval import CATEGORIES, HARD, by_category, ceval_tasks
from bench.eval.choice_files import hellaswag_tasks, jsonl_tasks, piqa_tasks, winogrande_tasks
from bench.eval.choices import ChoiceTask, EncodedTask, Scorer, encode_task
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
        ours = Scorer(model).score([EncodedTask(context, endings)])
        assert ours == pytest.approx([log_likelihood(model, context, ending) for ending in endings], rel=1e-5)


def test_a_context_too_long_loses_its_beginning(packed: Path) -> None:
    context, ending = list(range(3, 60)), [[5, 6], [7, 8]]
    with NativeModel(packed, context_tokens=20, branches=2, threads=1) as model:
        whole, cut = (Scorer(model).score([EncodedTask(part, ending)]) for part in (context, context[-18:]))
        assert whole == cut


def test_what_contexts_share_is_computed_once_and_scores_the_same(packed: Path) -> None:
    generator = np.random.default_rng(1)
    shared, others = (generator.integers(3, 250, size).tolist() for size in (40, 70))
    # A longer context, one that ends inside it, the same again, and one that differs from its first token on.
    contexts = [shared + others[:20], shared[:33], shared[:33], shared + others[20:], others]
    tasks = [EncodedTask(context, [[5, 6, 7], [8]]) for context in contexts]
    with NativeModel(packed, context_tokens=128, branches=2, threads=1) as model:
        alone = [Scorer(model).score([task]) for task in tasks]
        computed: list[int] = []
        prefill = model.prefill

        def counted(ids: list[int], begin: int = 0) -> None:
            computed.append(len(ids))
            prefill(ids, begin)

        model.prefill = counted  # type: ignore[method-assign, assignment]
        together = Scorer(model)
        assert [together.score([task]) for task in tasks] == alone
    assert computed == [59, 0, 0, 57, 69]


def test_spaces_belong_to_the_continuation() -> None:
    tokenizer = byte_tokenizer()
    assert encode_task(tokenizer, ChoiceTask("ab  ", ("c", "d"), 0)) == [
        EncodedTask(tokenizer.encode("ab").ids, [tokenizer.encode("  c").ids, tokenizer.encode("  d").ids])
    ]
    with pytest.raises(EvalError, match="empty"):
        encode_task(tokenizer, ChoiceTask(" ", ("c", "d"), 0))


def test_what_a_tokenizer_puts_first_comes_first() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    (plain,) = encode_task(tokenizer, ChoiceTask("ab", (" c", " d"), 0))
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    with_bos = encode_task(tokenizer, ChoiceTask("ab", (" c", " d"), 0))
    assert with_bos == [EncodedTask([1, *plain.context], plain.continuations)]


def test_each_continuation_may_have_its_own_context() -> None:
    tokenizer = byte_tokenizer()
    parts = encode_task(tokenizer, ChoiceTask(("Ann saw", "Bo saw"), (" it", " it"), 1))
    assert parts == [
        EncodedTask(tokenizer.encode(text).ids, [tokenizer.encode(" it").ids]) for text in ("Ann saw", "Bo saw")
    ]


def test_hellaswag(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hellaswag.txt"
    path.write_text(("A man sits.\n2\nhe a\nhe longer one\nhe x\nhe the\n" * 3) + "\n")
    tasks = hellaswag_tasks(path)
    assert tasks[0] == ChoiceTask("A man sits.", (" he a", " he longer one", " he x", " he the"), 2)
    result = run(capsys, "hellaswag", packed, "--tasks", path)
    tokenizer = Tokenizer.from_file(str(packed / "tokenizer.json"))
    (encoded,) = encode_task(tokenizer, tasks[0])
    with NativeModel(packed, context_tokens=64, threads=1) as model:
        values = [log_likelihood(model, encoded.context, part) for part in encoded.continuations]
    best = np.argmax([value / size for value, size in zip(values, (4, 13, 4, 6), strict=True)])
    assert result["tasks"] == 3
    assert result["acc"] == float(np.argmax(values) == 2)
    assert result["acc_norm"] == float(best == 2)
    assert result["acc_stderr"] == 0
    assert result["right"] == {"acc": f"{result['acc']:.0f}" * 3, "acc_norm": f"{result['acc_norm']:.0f}" * 3}
    assert run(capsys, "hellaswag", packed, "--tasks", path, "--limit", 2)["tasks"] == 2


@pytest.mark.parametrize(
    ("content", "message"), [("a\nb\n", "has 2 lines"), ("a\n7\nb\nc\nd\ne\n", "line 2 is '7'"), ("", "has 0 lines")]
)
def test_a_damaged_hellaswag_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.txt").write_text(content)
    with pytest.raises(EvalError, match=message):
        hellaswag_tasks(tmp_path / "x.txt")


def lines(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


SWAG = {"ctx_a": "Ann opens the box [note].", "ctx_b": "inside is", "activity_label": "Boxes",
        "endings": ["a cat.", "[step] a  dog. [title] No.", " the sea.", "nothing."], "label": 3}  # fmt: skip
PHYSICAL = {"goal": "Warm the soup.", "sol1": "Put it on the stove.", "sol2": "Put it on the roof. "}
GRANDE = {"sentence": "Ann asked Bo because _ knew the way.", "option1": "Ann", "option2": "Bo", "answer": "2"}


def test_hellaswag_as_published(tmp_path: Path) -> None:
    (task,) = hellaswag_tasks(lines(tmp_path / "x.jsonl", SWAG))
    assert task == ChoiceTask(
        "Boxes: Ann opens the box . Inside is", (" a cat.", "  a dog.. No.", " the sea.", " nothing."), 3
    )


def test_piqa(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lines(tmp_path / "dev.jsonl", PHYSICAL, PHYSICAL)
    with pytest.raises(EvalError, match="line 1 has no label, and dev-labels"):
        piqa_tasks(path)
    (tmp_path / "dev-labels.lst").write_text("0\n1\n")
    wanted = ChoiceTask("Question: Warm the soup.\nAnswer:", (" Put it on the stove.", " Put it on the roof. "), 0)
    tasks = piqa_tasks(path)
    assert tasks[0] == wanted
    assert tasks[1].answer == 1
    assert piqa_tasks(lines(tmp_path / "hub.jsonl", PHYSICAL | {"label": 0})) == [wanted]
    assert run(capsys, "piqa", packed, "--tasks", path)["acc"] == 0.5


def test_winogrande(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lines(tmp_path / "dev.jsonl", GRANDE)
    (task,) = winogrande_tasks(path)
    assert task == ChoiceTask(("Ann asked Bo because Ann", "Ann asked Bo because Bo"), (" knew the way.",) * 2, 1)
    result = run(capsys, "winogrande", packed, "--tasks", path)
    tokenizer = Tokenizer.from_file(str(packed / "tokenizer.json"))
    with NativeModel(packed, context_tokens=64, threads=1) as model:
        ann, bo = (
            log_likelihood(model, tokenizer.encode(text).ids, tokenizer.encode(" knew the way.").ids)
            for text in task.context
        )
    assert result["acc"] == float(bo > ann)


@pytest.mark.parametrize(
    ("read", "entry", "message"),
    [
        (hellaswag_tasks, SWAG | {"endings": ["a", "b", "c"]}, "line 1 has no four endings"),
        (hellaswag_tasks, SWAG | {"label": 4}, "answer 4, not 0 to 3"),
        (piqa_tasks, PHYSICAL | {"sol2": None, "label": 0}, "line 1 has no sol2"),
        (piqa_tasks, PHYSICAL | {"label": "-1"}, "answer '-1', not 0 to 1"),
        (winogrande_tasks, GRANDE | {"sentence": "Ann knew."}, "no _ with words after it"),
        (winogrande_tasks, GRANDE | {"answer": ""}, "answer '', not 1 to 2"),
    ],
)
def test_damaged_files_as_published(read: Any, entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(EvalError, match=message):
        read(lines(tmp_path / "x.jsonl", entry))


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
    assert isinstance(tasks[1].context, str)
    assert tasks[1].context.endswith("问题, 1____。\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案：")
    assert tasks[1].context.count("答案：") == 6
    assert "答案：A\n\n" in tasks[1].context
    assert (tasks[1].continuations, tasks[1].answer, tasks[1].group) == (("A", "B", "C", "D"), 1, "computer_network")
    result = run(capsys, "ceval", packed, "--data", folder, "--limit", 2)
    assert set(result["groups"]) == {"computer_network", "physics"}
    assert result["acc"] == pytest.approx(result["acc_mean_of_groups"])
    categories = result["categories"]
    assert set(categories) == {"STEM", "Average"}  # "physics" alone is no subject of C-Eval
    assert categories["STEM"]["acc"] == result["groups"]["computer_network"]["acc"]
    assert categories["Average"] == by_category(result["groups"])["Average"]
    assert categories["Average"]["acc"] == pytest.approx(result["acc"])


def test_cevals_subjects_are_in_one_category_each() -> None:
    subjects = [subject for members in CATEGORIES.values() for subject in members]
    assert len(subjects) == len(set(subjects)) == 52
    assert set(CATEGORIES["STEM"]) > HARD
    results = {subject: {"tasks": 4, "acc": float(subject in HARD), "acc_stderr": 0.5} for subject in subjects}
    table = by_category(results)
    assert table["Hard"] == pytest.approx({"subjects": 8, "tasks": 32, "acc": 1, "acc_stderr": 0.5 / 8**0.5})
    assert table["STEM"]["acc"] == 8 / 20
    assert table["Humanities"]["acc"] == 0


def test_ceval_without_answers(tmp_path: Path) -> None:
    folder = write_ceval(tmp_path / "ceval")
    (folder / "test").mkdir()
    (folder / "test/physics_test.csv").write_text("id,question,A,B,C,D\n0,q,a,b,c,d\n")
    with pytest.raises(EvalError, match="line 2 lacks answer"):
        ceval_tasks(folder, "test", None)
    with pytest.raises(EvalError, match="has no val/"):
        ceval_tasks(tmp_path, "val", None)
