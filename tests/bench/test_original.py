"""int4 against transformers on a small shape: what is measured, and that it is measured once."""

import json
from pathlib import Path

import pytest

from bench import original


def test_each_type_answers_and_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "original.json"
    arguments = ["smollm2-135m", "--layers", "1", "--threads", "1", "--inputs", "8,16", "--outputs", "4,12"]
    arguments += ["--work", str(tmp_path / "work"), "--out", str(out)]
    assert original.main([*arguments, "--types", "torch-bf16,sym_int4"]) == 0
    result = json.loads(out.read_text())
    assert list(result["types"]) == ["sym_int4", "torch-bf16"]
    for one in result["types"].values():
        assert one["load_s"] > 0
        assert one["resident_bytes"] > 10_000_000
        for tokens in ("8", "16"):
            times = one["inputs"][tokens]
            assert 0 < times["response_s"]["4"] < times["response_s"]["12"]
            assert times["next_token_s"] < times["response_s"]["12"]

    def not_again(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(original, "_child", not_again)
    assert original.main([*arguments, "--types", "sym_int4"]) == 0
    assert json.loads(out.read_text())["types"] == result["types"]
