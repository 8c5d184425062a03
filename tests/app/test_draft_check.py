import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from app.draft_check import DraftError, check_draft


def folder(path: Path, vocab: object, added: Mapping[int, str]) -> Path:
    path.mkdir()
    tokens = [{"id": number, "content": text} for number, text in added.items()]
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": tokens}))
    return path


LETTERS: dict[str, Any] = {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("vocab", "added"),
    [
        (LETTERS, {3: "<end>"}),
        (LETTERS, {3: "<end>", 4: "<think>"}),  # a later model of the family knows more
        (LETTERS, {}),
        ([["a", -1.0], ["b", -2.0], ["c", -3.0]], {3: "<end>"}),
        ({**LETTERS, "[PAD4]": 4, "[PAD5]": 5}, {3: "<end>"}),  # as a GGUF fills up its rows
    ],
)
def test_a_model_of_the_same_family_can_draft(tmp_path: Path, vocab: object, added: dict[int, str]) -> None:
    target = folder(tmp_path / "target", LETTERS, {3: "<end>"})
    check_draft(target, "target", folder(tmp_path / "draft", vocab, added))


@pytest.mark.parametrize(
    ("vocab", "added", "reason"),
    [
        ({"a": 0, "b": 1, "d": 2}, {3: "<end>"}, r"token 2 is 'd' there and 'c' here\. A draft model must be"),
        ({"a": 0, "b": 1}, {3: "<end>"}, r"token 2 is missing there and 'c' here"),
        ({**LETTERS, "d": 4}, {3: "<end>"}, r"token 4 is 'd' there and missing here"),
        (LETTERS, {3: "</s>"}, r"token 3 is '</s>' there and '<end>' here"),
    ],
)
def test_another_vocabulary_is_refused(tmp_path: Path, vocab: object, added: dict[int, str], reason: str) -> None:
    target = folder(tmp_path / "target", LETTERS, {3: "<end>"})
    with pytest.raises(DraftError, match=rf"draft has another vocabulary than the-target: {reason}"):
        check_draft(target, "the-target", folder(tmp_path / "draft", vocab, added))


SIZES = {"hidden_size": 64, "vocab_size": 4}


@pytest.mark.parametrize(
    ("of_head", "reason"),
    [
        ({}, None),
        (
            {"hidden_size": 32},
            r"head is an EAGLE-3 head for a hidden size of 32, and the-target has 64\. A head drafts",
        ),
        (
            {"vocab_size": 5},
            r"head is an EAGLE-3 head for a vocabulary of 5, and the-target has 4\. A head drafts only",
        ),
    ],
)
def test_a_head_drafts_for_a_model_of_its_sizes(tmp_path: Path, of_head: dict[str, int], reason: str | None) -> None:
    target = folder(tmp_path / "target", LETTERS, {3: "<end>"})
    (target / "config.json").write_text(json.dumps(SIZES))
    (tmp_path / "head").mkdir()
    config = {**SIZES, **of_head, "architectures": ["LlamaForCausalLMEagle3"]}
    (tmp_path / "head/config.json").write_text(json.dumps(config))
    with nullcontext() if reason is None else pytest.raises(DraftError, match=reason):
        check_draft(target, "the-target", tmp_path / "head")
