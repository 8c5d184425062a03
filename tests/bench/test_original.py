"""int4 against transformers on a small shape: what is measured, that it is measured once, and its tables."""

import json
from pathlib import Path

import pytest

from bench import original
from bench.published import thesis
from bench.published.results import Results, mib, sources


def test_each_type_answers_and_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
            assert len(times["first_times_s"]) == 11
            assert times["first_times_s"][0] == times["first_token_s"]

    stages = result["types"]["sym_int4"]["stages_s"]
    assert stages["prompt"]["gate_up"] > 0
    assert stages["next_token"].keys() == stages["prompt"].keys()

    def not_again(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(original, "_child", not_again)
    assert original.main([*arguments, "--types", "sym_int4"]) == 0
    assert json.loads(out.read_text()) == result

    monkeypatch.setattr(original, "_child", lambda *_: {"inputs": {}, "load_s": 1.0})
    assert original.main([*arguments, "--types", "int8,torch-bf16"]) == 0
    types = json.loads(out.read_text())["types"]
    assert types["sym_int4"] == result["types"]["sym_int4"], "an earlier run's command and day stay with its types"
    assert "--types torch-bf16,sym_int4" in types["torch-bf16"]["command"]
    assert "--types int8,torch-bf16" in types["int8"]["command"]
    assert original.main([*arguments, "--types", "torch-bf16", "--again"]) == 0
    types = json.loads(out.read_text())["types"]
    assert types["torch-bf16"]["command"].endswith("--types torch-bf16 --again")
    assert "int8" in types, "what was not asked for again stays"
    foreign = json.dumps({**result, "machine": {**result["machine"], "cores": 1024}})
    out.write_text(foreign)
    with pytest.raises(SystemExit):
        original.main([*arguments, "--types", "int8"])
    assert "is of another machine: name another file" in capsys.readouterr().err
    assert out.read_text() == foreign
    out.write_text(json.dumps(result))
    monkeypatch.setattr(original, "_child", not_again)

    monkeypatch.setattr(original, "available_memory_bytes", lambda: 2 << 30)
    assert original.main([*arguments, "--types", "fp32"]) == 0
    assert "are free" in json.loads(out.read_text())["types"]["fp32"]["left_out"]

    out.rename(tmp_path / "original-1.1b-here.json")
    results = Results(tmp_path)
    megabytes = mib(result["types"]["sym_int4"]["resident_bytes"])
    assert f"| sym_int4 | 3,976 | 7,218 | {megabytes} |" in thesis.memory(results)
    times = {name: result["types"][name]["inputs"]["16"]["response_s"]["12"] for name in ("sym_int4", "torch-bf16")}
    (row,) = (line for line in thesis.response(results) if line.startswith("| 16 in, 12 out |"))
    assert row.endswith(f"| — | {times['sym_int4'] / times['torch-bf16']:.2f} |")
    assert any("without fp32, for lack of memory" in line for line in sources(results.of("original-1.1b")))
