"""`bench.sealed` prints what it measured."""

import json
from pathlib import Path

import pytest

from bench import sealed
from tests.kernels.tiny_model import LARGER_LLAMA, write_random_model


@pytest.mark.parametrize("options", [(), ("--cold",)])
def test_it_prints_one_object(tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    model = write_random_model(tmp_path / "model", LARGER_LLAMA)
    arguments = [str(model), "--repeats", "1", "--threads", "2", "--folder", str(tmp_path), *options]
    assert sealed.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["image_bytes"] > result["weights_bytes"] == (model / "model.safetensors").stat().st_size
    assert set(result["load_s"]) == set(result["load_gb_per_s"]) == {"folder", "folder_copied", "sealed"}
    assert all(seconds > 0 for seconds in result["load_s"].values())
    assert result["cold"] is bool(options)
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "the image is left"


def test_a_folder_without_a_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sealed.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"redoubt: {tmp_path}: is not a converted model: it has no config.json\n"
