"""What a template and a tokenizer do is found in a process with bounds."""

import json
from pathlib import Path

import pytest

from app.interface.text.bounded_check import check_model
from app.messages.model_card import ModelCard
from app.model_folder import ChatModelError
from tests.app.tiny_model import write_model

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def notes(folder: Path, template: str | None, cpu_s: int = 60) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return " ".join(check_model(ModelCard("m", str(folder), None, "refuse"), "redoubt serve", cpu_s=cpu_s))


def test_what_templates_do(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert notes(folder, "{{ messages[0].content }}") == ""
    assert notes(folder, None).startswith("m has no chat template: it serves completions only.")
    assert "m may not chat: The model's chat template refuses these messages: no." in notes(
        folder, "{{ raise_exception('no.') }}"
    )
    for endless in (ENDLESS, "{{ 'a' * 99999999999 }}"):
        with pytest.raises(ChatModelError, match=r"the chat template exceeds 1 s of computation"):
            notes(folder, endless, cpu_s=1)
