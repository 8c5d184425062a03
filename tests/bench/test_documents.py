import json
from pathlib import Path

import pytest

from bench.document_sides import Asked
from bench.documents import _measured, main
from bench.models import long_context_model


class FakeSide:
    """Answers in a second for each token that it has not in memory, and has nothing in memory after an interruption."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._known: set[str] = set()
        self._kept: set[str] = set()

    def about(self) -> dict[str, object]:
        return {"version": "0"}

    def ask(self, document: str, question: str) -> Asked:
        self.log.append(f"{document}: {question}")
        cached = len(document) if document in self._known else 0
        self._known.add(document)
        return Asked(1.0 + len(document) - cached, len(document), cached)

    def keep(self, name: str) -> None:
        self._kept.add(name)

    def recall(self, name: str) -> float:
        assert name in self._kept
        self._known.add("x" * int(name))
        return 0.5

    def kill(self) -> float:
        self._known.clear()
        return 3.0

    def restart(self) -> float:
        self._known.clear()
        return 9.0


def test_each_document_is_asked_about_before_and_after_each_interruption() -> None:
    side = FakeSide()
    result = _measured(side, {9: "x" * 9, 99: "x" * 99})
    assert result["documents"][99] == {
        "prompt_tokens": 99,
        "first_s": 100.0,
        "second_s": 1.0,
        "after_kill_s": 1.5,
        "after_restart_s": 1.5,
        "cached_tokens": {"first": 0, "second": 99, "after_kill": 99, "after_restart": 99},
        "first_over_second": 100.0,
        "first_over_after_kill": 66.7,
        "first_over_after_restart": 66.7,
    }
    assert result["documents"][9]["first_s"] == 10.0
    assert result["ready_s"] == {"after_kill": 3.0, "after_restart": 9.0}
    asked = [question for question in side.log if question.startswith("x")]
    assert len(set(asked)) == len(asked) == 12, "no question was asked before"


def test_a_document_that_the_embedded_model_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--threads", "1", "--tokens", "16384", "--json"]) == 2
    said = capsys.readouterr().err
    assert said == "redoubt: the embedded model reads documents of 7680 tokens at most; longer ones need --layers\n"


def test_random_weights_have_any_context_in_both_forms(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    model = long_context_model(1, 66_048, tmp_path)
    config = json.loads((model.packed / "config.json").read_text())
    assert (config["max_position_embeddings"], config["num_hidden_layers"]) == (66_048, 1)
    fields = gguf.GGUFReader(model.gguf).fields
    assert [int(fields[f"llama.{name}"].contents()) for name in ("context_length", "block_count")] == [66_048, 1]
    before = model.gguf.stat().st_mtime_ns
    assert long_context_model(1, 66_048, tmp_path).gguf.stat().st_mtime_ns == before, "made once"
