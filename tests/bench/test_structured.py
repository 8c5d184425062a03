import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.peers.xgrammar import vocabulary
from bench.process import Contender
from bench.structured import Ours, follow_with, measure_case, measure_hostile, measure_hostile_beside, spread, summary
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
    ours = Ours(folder, tokenizer.get_vocab_size(), "cpu")
    libraries = {"ours": ours.follow, "another": ours.follow}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    result = measure_case(tokenizer, schema, {"a": 1}, 2, libraries)
    assert list(result) == ["tokens", "ours", "another"]
    assert result["tokens"] == len(tokenizer.encode('{"a": 1}').ids)
    assert result["ours"]["mask_us"]["first"]["p50"] > 0
    with pytest.raises(ValueError, match="does not follow"):
        measure_case(tokenizer, schema, {"a": "text"}, 1, libraries)
    assert "can't be followed" in measure_hostile(ours.constraints, {"not": {}})["refused"]
    ours.constraints.close()


PROCESS = """
import json, sys
print(json.dumps({"version": "1", "settings": "", "variants": [""], "load_s": 0.1}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if order["schema"] == '"refuse"': print(json.dumps({"refused": "for a reason"}), flush=True)
    elif order["schema"] == '"die"': sys.exit("the end")
    else:
        times = {"compile_ms": 7.0, "masks_us": [3.0] * len(order["token_ids"]), "accepts_us": [1.0]}
        print(json.dumps({"first": times, "again": times}), flush=True)
"""


def test_another_library_is_asked_in_its_process_and_its_refusals_and_crashes_are_results(tmp_path: Path) -> None:
    contender = Contender("other", [sys.executable, "-c", PROCESS], tmp_path, tmp_path / "log", timeout_s=60)
    follow = follow_with(contender)
    found = summary([follow("{}", [1, 2])])
    assert (found["compile_ms"], found["first_mask_us"], found["mask_us"]["again"]["p99"]) == (7.0, 3.0, 3.0)
    assert measure_hostile_beside(follow, "refuse")["refused"] == "for a reason"
    assert "the end" in summary([follow('"die"', [1])])["refused"]
    assert measure_hostile_beside(follow, {}) == {"ms": 7.0, "refused": ""}, "it was started again"
    contender.stop()


def test_tokens_that_stand_for_no_text_have_none(folder: Path) -> None:
    texts = vocabulary(folder / "tokenizer.json", 400)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(texts) == 400
    assert texts[EOS_ID] == ""
    assert texts[tokenizer.get_vocab_size() :] == [""] * (400 - tokenizer.get_vocab_size())
    assert all(tokenizer.id_to_token(token) == text for token, text in enumerate(texts) if text)


def test_a_spread() -> None:
    assert spread([1.0, 2.0, 3.0]) == {"p50": 2.0, "p90": 2.8, "p99": 3.0, "max": 3.0}
