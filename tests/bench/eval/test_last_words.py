"""LAMBADA: its file, and scores against whole forward passes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.eval import command
from bench.eval.choices import ChoiceTask
from bench.eval.errors import EvalError
from bench.eval.last_words import lambada_tasks
from quant.calibration.log_probabilities import log_probabilities
from quant.packed.native_model import NativeModel


def write(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_a_passage_is_split_at_its_last_space(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", "The cat\nsat on the mat", "Hello world")
    assert lambada_tasks(path) == [
        ChoiceTask("The cat\nsat on the", (" mat",), 0), ChoiceTask("Hello", (" world",), 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"text": "one"}', "line 1 has no text of two words"), ("{}", "line 1 has no text"), ("", "holds no passage")],
)
def test_damaged_files(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(EvalError, match=message):
        lambada_tasks(tmp_path / "x.jsonl")


def test_a_word_is_found_if_each_of_its_tokens_is_the_likeliest(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer.from_file(str(packed / "tokenizer.json"))
    context = tokenizer.encode("It was the best").ids
    space = tokenizer.encode(" ").ids[0]
    with NativeModel(packed, context_tokens=64, threads=1) as model:
        ((_, logits),) = model.logits([*context, space])
        found = int(logits[-1].argmax())
        missed = "q" if tokenizer.decode([found]) != "q" else "z"
        words = [missed, "times,"]
        expected = []
        for word in words:
            ids = tokenizer.encode(f" {word}").ids
            ((_, rows),) = model.logits([*context, *ids[:-1]])
            expected.append(float(log_probabilities(rows[-len(ids) :], np.array(ids)).sum()))
    path = write(tmp_path / "x.jsonl", *(f"It was the best {word}" for word in words))
    assert command.main(["lambada", str(packed), "--tasks", str(path), "--threads", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["right"]["acc"] == "00"
    assert result["perplexity"] == pytest.approx(math.exp(-sum(expected) / 2), rel=1e-5)
    assert result["perplexity_stderr"] > 0
