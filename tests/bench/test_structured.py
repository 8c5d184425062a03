import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from app.constraints import Constraints
from bench.structured import measure_case, measure_hostile, spread
from tests.app.tiny_model import EOS_ID, tokenizer_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vocab_size = len(tokenizer_json()["model"]["vocab"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    config = {"vocab_size": vocab_size, "max_position_embeddings": 512, "eos_token_id": EOS_ID}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_an_output_is_walked_and_one_that_breaks_its_schema_is_told(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    constraints = Constraints(folder, tokenizer.get_vocab_size())
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    result = measure_case(constraints, tokenizer, schema, {"a": 1}, rounds=2)
    assert result["tokens"] == len(tokenizer.encode('{"a": 1}').ids)
    assert result["mask_us"]["first"]["p50"] > 0
    with pytest.raises(ValueError, match="does not follow"):
        measure_case(constraints, tokenizer, schema, {"a": "text"}, rounds=1)
    assert "can't be followed" in measure_hostile(constraints, {"not": {}})["refused"]
    constraints.close()


def test_a_spread() -> None:
    assert spread([1.0, 2.0, 3.0]) == {"p50": 2.0, "p90": 2.8, "p99": 3.0, "max": 3.0}
