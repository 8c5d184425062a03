import json
from pathlib import Path
from typing import Any

import pytest

from quant.errors import SourceError
from quant.sources.hf_tokenizer import copy_hf_tokenizer
from tests.quant.checkpoints import byte_tokenizer


def copied(tmp_path: Path, files: dict[str, Any], config: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """The tokenizer and generation configs that come of a folder with these files."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    byte_tokenizer().save(str(source / "tokenizer.json"))
    for name, content in files.items():
        (source / name).write_text(content if isinstance(content, str) else json.dumps(content))
    copy_hf_tokenizer(source, target, {"vocab_size": 259} | (config or {}))
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    settings, generation = (
        json.loads((target / name).read_text()) for name in ("tokenizer_config.json", "generation_config.json")
    )
    return settings, generation


TEMPLATES: dict[str, dict[str, Any]] = {
    "in the config": {"tokenizer_config.json": {"chat_template": "T"}},
    "in a file of its own": {"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "T"},
    "in a JSON file": {"chat_template.json": {"chat_template": "T"}},
    "named": {
        "tokenizer_config.json": {
            "chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": "T"}]
        }
    },
}


@pytest.mark.parametrize("where", TEMPLATES)
def test_the_template_is_found(tmp_path: Path, where: str) -> None:
    assert copied(tmp_path, TEMPLATES[where])[0]["chat_template"] == "T"


def test_no_template(tmp_path: Path) -> None:
    assert "chat_template" not in copied(tmp_path, {})[0]


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": 7}, {}, [7, 0, 2]),
        ({"eos_token_id": [2, 7]}, {}, [2, 7, 0]),
        ({}, {"eos_token_id": 2}, [2, 0]),
        ({}, {}, [0, 2]),
    ],
)
def test_end_tokens(tmp_path: Path, generation: Any, config: Any, ends: list[int]) -> None:
    made = copied(tmp_path, {"generation_config.json": generation | {"top_p": 0.9}}, config)[1]
    assert made == {"eos_token_id": ends, "top_p": 0.9}


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"generation_config.json: is not a JSON object"):
        copied(tmp_path, {"generation_config.json": "[]"})


def test_more_tokens_than_embeddings(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has a token 258, but the model has 258 embeddings"):
        copied(tmp_path, {}, {"vocab_size": 258})


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match=r"tokenizer.json: is not a tokenizer"):
        copy_hf_tokenizer(tmp_path, tmp_path / "out", {})
