"""A GGUF's Q4_0, Q4_1 and Q8_0: as imported they have exactly the source's perplexity."""

import json
from pathlib import Path

import gguf
import pytest

from bench.eval import command
from quant.conversion.convert import convert
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_perplexity_is_the_sources(kind: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {n: v * (0.1 if v.ndim == 2 else 1.0) for n, v in random_tensors(CONFIG, seed=3).items()}
    source = write_gguf(tmp_path / "x.gguf", tensors, kind=gguf.GGMLQuantizationType[kind])
    convert(source, tmp_path / "out", progress=False)
    options = ["--text", str(text), "--context", "40", "--windows", "3", "--json", "--threads", "1"]
    run = ["kl", str(tmp_path / "out"), "--baseline", str(source), "--compute-type", "fp32", "--kv-type", "fp32"]
    assert command.main([*run, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["perplexity"] == pytest.approx(result["baseline"]["perplexity"], rel=1e-6)
    assert result["kl"]["max"] < 1e-6
