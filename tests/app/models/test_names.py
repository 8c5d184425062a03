"""What a name means, and the catalogue, which the code must be able to read."""

from pathlib import Path

import pytest

from app.commands.plan_inputs import read_demand
from app.models.names import HubName, ModelNameError, catalogue, catalogue_draft, read_name
from quant.conversion.shapes import ENCODER_SHAPES, SHAPES
from quant.families.registry import describe
from quant.sources.gguf_architectures import ARCHITECTURES
from quant.sources.gguf_config import _MODEL_CLASSES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Qwen/Qwen3-4B", HubName("Qwen/Qwen3-4B")),
        ("Qwen/Qwen3-4B@refs/pr/1", HubName("Qwen/Qwen3-4B", "refs/pr/1")),
        ("Qwen/Qwen3-4B-GGUF:Q4_K_M", HubName("Qwen/Qwen3-4B-GGUF", None, "Q4_K_M")),
        ("o/r@main:r-Q8_0.gguf", HubName("o/r", "main", "r-Q8_0.gguf")),
        ("hub:o/r", HubName("o/r")),
        ("https://huggingface.co/o/r/", HubName("o/r")),
        ("Qwen3-4B", catalogue()["qwen3-4b"].source),
    ],
)
def test_a_name_is_read(name: str, meant: HubName) -> None:
    assert read_name(name) == meant


def test_a_path_that_is_there_is_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text("{}")
    (tmp_path / "a.gguf").touch()
    for name in ("models/mine", "./models/mine", "a.gguf", str(tmp_path)):
        assert read_name(name) == Path(name)


def test_what_may_be_two_things_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-4B").mkdir(parents=True)
    (tmp_path / "qwen3-8b").mkdir()
    with pytest.raises(ModelNameError, match=r"\./Qwen/Qwen3-4B for the path, hub:Qwen/Qwen3-4B for the repository"):
        read_name("Qwen/Qwen3-4B")
    with pytest.raises(ModelNameError, match=r"an entry of the catalogue: write \./qwen3-8b"):
        read_name("qwen3-8b")
    assert read_name("hub:Qwen/Qwen3-4B") == HubName("Qwen/Qwen3-4B")
    assert read_name("./qwen3-8b") == Path("qwen3-8b")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen3-400b", "no entry of the catalogue"),
        ("models/none.gguf", "no such file"),
        ("./none", "no such file"),
        ("a/b/c", "no such file"),
        ("hub:none", "is not hub:ORG/REPOSITORY"),
    ],
)
def test_what_means_nothing_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ModelNameError, match=reason):
        read_name(name)


def test_the_catalogue_has_what_the_code_reads_and_computes() -> None:
    assert len(catalogue()) >= 25
    shapes = {entry.shape for entry in catalogue().values()}
    every = {**SHAPES, **ENCODER_SHAPES}
    for shape in shapes:
        describe(every[shape], shape)
    assert SHAPES.keys().isdisjoint(ENCODER_SHAPES)
    for shape in ENCODER_SHAPES:
        assert read_demand(shape, None, None).matrices.type_name.startswith("int8")
    assert read_demand("smollm2-135m", None, None).weight_bytes > 0
    named = {"mistral": "llama", "qwen35text": "qwen35", "deepseekv2": "deepseek2", "glm4moelite": "deepseek2"}
    for name, entry in catalogue().items():
        family = every[entry.shape]["model_type"].replace("_", "")
        assert entry.source.gguf is None or named.get(family, family) in (*_MODEL_CLASSES, *ARCHITECTURES)
        assert read_name(name) == entry.source
        if entry.draft is not None:
            draft = catalogue()[entry.draft]
            assert SHAPES[draft.shape]["vocab_size"] - SHAPES[entry.shape]["vocab_size"] in (0, -128), name
            assert catalogue_draft(name) == catalogue_draft(str(entry.source)) == entry.draft
        if entry.head is not None:
            assert entry.head.gguf is None
            assert catalogue_draft(name, head=True) == catalogue_draft(str(entry.source), head=True) == str(entry.head)
        assert entry.good_for
        assert entry.licence
