"""The quality report on a tiny model: what it holds, what its page shows, and that it refuses what it can't do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.eval import command
from bench.eval.page import BEGIN, END, tables, with_report
from bench.eval.report import VARIANTS, label, linear_bits, weight_errors
from quant.packed.packed_file import PackedFile
from quant.sources.open_source import open_source


def run(checkpoint: Path, text: Path, work: Path, *more: object) -> dict[str, Any]:
    hellaswag = work.parent / "hellaswag.txt"
    hellaswag.write_text("A man sits.\n1\nhe a\nhe b\nhe c\nhe d\n" * 2)
    out = work.parent / "report.json"
    arguments = ["report", checkpoint, "--text", text, "--windows", 2, "--context", 40, "--work", work]
    arguments += ["--hellaswag", hellaswag, "--only", "sym_int4 g64 rtn,int8 g64 rtn,nf4 g64 rtn", "--out", out]
    assert command.main([*map(str, [*arguments, *more]), "--threads", "1"]) == 0
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.fixture(scope="module")
def report(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text("It was the best of times, it was the worst of times. " * 4)
    return run(checkpoint, folder / "text.txt", folder / "work")


def test_each_variant_is_measured(report: dict[str, Any], checkpoint: Path) -> None:
    rows = {row["variant"]: row for row in report["variants"]}
    assert set(rows) == {"sym_int4 g64 rtn", "int8 g64 rtn", "nf4 g64 rtn"}
    int4, int8 = rows["sym_int4 g64 rtn"], rows["int8 g64 rtn"]
    assert int4["linear_bits_per_weight"] == 4.25
    assert int8["linear_bits_per_weight"] == 8.25
    assert int8["kl"]["mean"] < int4["kl"]["mean"] / 10
    assert int8["weights_error"]["relative_rms"] < int4["weights_error"]["relative_rms"] / 10
    for row in rows.values():
        assert row["conversion_s"] > 0
        assert row["load_s"] > 0
        assert row["resident_bytes"] > row["size_bytes"]
        assert 0 <= row["hellaswag"] <= 1
        assert sum(row["weights_error"]["histogram"]) > 1000
    engine = report["engine"]
    assert engine["codes kept"]["kl"]["mean"] > engine["int8 activations"]["kl"]["mean"] > 0
    assert engine["int8 keys and values"]["kl"]["mean"] > engine["bf16 keys and values"]["kl"]["mean"] > 0


def test_weight_errors_are_those_of_the_values(packed: Path, checkpoint: Path) -> None:
    source, file = open_source(checkpoint), PackedFile(packed / "model.safetensors")
    wrong = size = zeroed = weights = 0.0
    for name in (name for name in file.matrices if name.endswith("_proj.weight")):
        values = np.asarray(source.tensors[name].read(0, source.tensors[name].shape[0]))
        wrong += float(((file.dequantize(name) - values) ** 2).sum())
        size += float((values**2).sum())
        zeroed += int(((file.dequantize(name) == 0) & (abs(values) >= np.sqrt((values**2).mean()) / 100)).sum())
        weights += values.size
    found = weight_errors(checkpoint, packed)
    assert found["relative_rms"] == pytest.approx((wrong / size) ** 0.5, rel=1e-5)
    assert found["zeroed"] == zeroed / weights > 0.01
    assert linear_bits(packed) == 4.5


def test_the_page_holds_the_tables(report: dict[str, Any]) -> None:
    page = with_report(f"# Title\n{BEGIN}\nold\n{END}\nrest", report, "![x](x.svg)")
    assert page.startswith("# Title\n")
    assert page.endswith("\nrest")
    assert "old" not in page
    for row in report["variants"]:
        assert f"| {row['variant']} | {row['linear_bits_per_weight']:.2f} |" in page
    lines = [line for line in tables(report).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines[: len(report["variants"]) + 2]} == {13}
    with pytest.raises(ValueError, match="the page has no"):
        with_report("no marks", report, "")


def test_names_and_refusals(checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len({label(variant) for variant in VARIANTS}) == len(VARIANTS)
    arguments = ["report", checkpoint, "--text", text, "--windows", 1, "--work", tmp_path / "w", "--only", "int3"]
    assert command.main([*map(str, arguments)]) == 2
    assert "--only int3: none of sym_int4 g32 rtn" in capsys.readouterr().err
