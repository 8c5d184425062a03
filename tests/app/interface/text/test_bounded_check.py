"""Templates and tokenizers are tried in a process with limits."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.interface.text.bounded_check import check_model
from app.messages.model_card import ModelCard
from app.model_folder import ChatModelError
from tests.app.tiny_model import tokenizer_json, write_model

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def notes(folder: Path, template: str | None, cpu_s: int = 60) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    card = ModelCard("m", str(folder), None, "refuse")
    return " ".join(check_model(card, "redoubt serve", passed=folder.with_name("passed"), cpu_s=cpu_s))


def test_what_templates_and_tokenizers_do(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert notes(folder, "{{ messages[0].content }}") == ""
    assert notes(folder, None).startswith("m has no chat template: it serves completions only.")
    assert "m may not chat: The model's chat template refuses these messages: no." in notes(
        folder, "{{ raise_exception('no.') }}"
    )
    for endless in (ENDLESS, "{{ 'a' * 99999999999 }}"):
        with pytest.raises(ChatModelError, match=r"the chat template exceeds .* --chat-template FILE"):
            notes(folder, endless)
    normalizer = {"type": "Sequence", "normalizers": [DOUBLING] * 40}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json() | {"normalizer": normalizer}))
    with pytest.raises(ChatModelError, match=r"tokenizer could not be loaded within 1 s and 8 GiB of memory"):
        notes(folder, None, cpu_s=1)


def test_what_has_passed_is_checked_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model")
    refused, ends = "{{ raise_exception('no.') }}", "{{ messages[0].content }}"
    first = notes(folder, refused)
    runs = list[str]()
    run = subprocess.run

    def counted(*args: Any, **options: Any) -> Any:
        runs.append(options["input"])
        return run(*args, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    assert notes(folder, refused) == first
    assert not runs
    assert notes(folder, ends) == ""
    assert len(runs) == 1
    for _ in range(2):  # failures are not remembered
        with pytest.raises(ChatModelError, match="not valid, line 1"):
            notes(folder, "{% if %}")
    assert len(runs) == 3
