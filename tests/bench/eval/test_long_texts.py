"""Perplexity on LongBench's texts: the files, their windows, and what is added up."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from bench.eval import command
from bench.eval.errors import EvalError
from bench.eval.long_metrics import METRICS
from bench.eval.long_texts import ENGLISH_SETS, long_texts, long_windows
from tests.quant.checkpoints import byte_tokenizer


def write_set(folder: Path, name: str, *texts: object) -> None:
    folder.mkdir(exist_ok=True)
    entries = [{"context": text, "input": "Who?", "answers": ["Ann"]} for text in texts]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_the_sets_are_the_fourteen_in_english() -> None:
    assert len(ENGLISH_SETS) == 14
    assert set(METRICS) - set(ENGLISH_SETS) == {"lcc", "repobench-p"}


def test_windows_do_not_cross_texts_and_begin_as_the_model_begins() -> None:
    tokenizer = byte_tokenizer()
    texts = {"qasper": ["abcdefg", "xy"], "trec": ["abcd"]}
    ids = tokenizer.encode("abcdefgxy").ids
    plain = long_windows(tokenizer, texts, 3, None)
    assert plain == {"qasper": [ids[:3], ids[3:6], ids[7:9]], "trec": [ids[:3]]}  # no piece of one token
    assert long_windows(tokenizer, texts, 3, 4)["qasper"] == [ids[:3], ids[7:9]]
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    assert long_windows(tokenizer, texts, 3, 4)["qasper"] == [[1, *ids[:2]], [1, *ids[2:4]], [1, *ids[7:9]]]
    with pytest.raises(EvalError, match="two tokens at least"):
        long_windows(tokenizer, texts, 1, None)


def test_a_run(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    write_set(folder, "qasper", "It was the best of times. " * 4, "It was the worst of times.")
    write_set(folder, "lcc", "int main() {}")
    write_set(folder, "trec", "A long text. " * 5)
    arguments = ["longbench-perplexity", str(packed), "--data", str(folder), "--threads", "1", "--context", "40"]
    assert command.main([*arguments, "--tokens", "60", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["sets"]) == ["qasper", "trec"]
    assert [each["tokens"] for each in result["sets"].values()] == [39 + 19 + 25, 39 + 19]
    assert result["by_window"]["tokens"] == [39, 19, 25, 39, 19]
    nats = -np.sum(result["by_window"]["log_probability"]) / result["tokens"]
    assert result["perplexity"] == pytest.approx(np.exp(nats), rel=1e-4)
    product = np.prod([each["perplexity"] for each in result["sets"].values()])
    assert result["perplexity_mean_of_sets"] == pytest.approx(product**0.5)
    assert command.main([*arguments, "--set", "trec", "--limit", "1", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["sets"]) == ["trec"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(EvalError, match="has no SET"):
        long_texts(tmp_path, [], None)
    with pytest.raises(EvalError, match="'lcc' is not one of narrativeqa"):
        long_texts(tmp_path, ["lcc"], None)
    write_set(tmp_path / "data", "trec", "a", 3)
    with pytest.raises(EvalError, match="line 2 has no context"):
        long_texts(tmp_path / "data", [], None)
