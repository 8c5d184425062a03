"""GGUFs of mixtures of experts: stacks in three dimensions, their metadata, and files in parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from quant.conversion.convert import convert
from quant.conversion.pieces import read_whole
from quant.errors import SourceError
from quant.families.registry import describe
from quant.packed.packed_file import PackedFile
from quant.sources.open_source import open_source
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf

SPARSE = {"num_experts": 6, "num_experts_per_tok": 2}
MODELS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "mixtral": ("llama", {"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2}, {}),
    "qwen3-moe": (
        "qwen3moe",
        {"model_type": "qwen3_moe", **SPARSE, "moe_intermediate_size": 96, "norm_topk_prob": True},
        {"qwen3moe.expert_feed_forward_length": 96},
    ),
    "qwen2-moe, older": (
        "qwen2moe",
        {"model_type": "qwen2_moe", **SPARSE, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 160},
        {},
    ),
    "olmoe": ("olmoe", {"model_type": "olmoe", **SPARSE}, {}),
    "olmoe that says what it does": (
        "olmoe", {"model_type": "olmoe", **SPARSE, "norm_topk_prob": True}, {"olmoe.expert_weights_norm": True},
    ),
    "qwen3-moe with a dense layer": (
        "qwen3moe",
        {
            "model_type": "qwen3_moe", **SPARSE, "moe_intermediate_size": 96, "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
        {"qwen3moe.expert_feed_forward_length": 96},
    ),
}  # fmt: skip


def written(path: Path, model: str, kind: Kind = Kind.F32) -> tuple[dict[str, Any], Mapping[str, Any]]:
    arch, changes, extra = MODELS[model]
    config = {**CONFIG, **changes}
    tensors = random_tensors(config)
    counts = {f"{arch}.expert_count": 6, f"{arch}.expert_used_count": 2}
    write_gguf(path, tensors, config, arch=arch, kind=kind, extra={**counts, **extra})
    return tensors, config


@pytest.mark.parametrize("model", MODELS)
def test_floats_and_descriptions_come_back(model: str, tmp_path: Path) -> None:
    tensors, config = written(tmp_path / "x.gguf", model)
    source = open_source(tmp_path / "x.gguf")
    assert source.decoder == describe(config, "x")
    assert set(source.tensors) == set(tensors)
    for name, values in tensors.items():
        assert np.array_equal(read_whole(source.tensors[name]), values), name
    assert source.config["model_type"] == config["model_type"]


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_codes_of_experts_are_kept(kind: Kind, tmp_path: Path) -> None:
    tensors, _ = written(tmp_path / "x.gguf", "mixtral", kind)
    convert(tmp_path / "x.gguf", tmp_path / "out", progress=False)
    packed = PackedFile(tmp_path / "out" / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj.weight"
    info = packed.matrices[name]
    assert (info.count, info.rows, info.cols, info.group) == (6, 6 * 128, 192, 32)
    expected = gguf.dequantize(gguf.quantize(tensors[name], kind), kind)
    assert np.array_equal(packed.dequantize(name), expected)
    router = packed.matrices["model.layers.1.mlp.router.weight"]
    assert (router.type, router.count) == ("fp32", 1)
    assert "count" not in router.described()


def test_a_router_is_never_quantized_even_if_the_file_has_it_in_codes(tmp_path: Path) -> None:
    _, changes, _ = MODELS["mixtral"]
    config = {**CONFIG, **changes}
    tensors = random_tensors(config)
    counts = {"llama.expert_count": 6, "llama.expert_used_count": 2}
    write_gguf(tmp_path / "x.gguf", tensors, config, kind=Kind.Q8_0, extra=counts, router_kind=Kind.Q8_0)
    convert(tmp_path / "x.gguf", tmp_path / "out", progress=False)
    packed, name = PackedFile(tmp_path / "out" / "model.safetensors"), "model.layers.0.mlp.router.weight"
    assert packed.matrices[name].type == "fp32"
    expected = gguf.dequantize(gguf.quantize(tensors[name], Kind.Q8_0), Kind.Q8_0)
    assert np.array_equal(packed.dequantize(name), expected)


def split(path: Path, parts: int) -> list[Path]:
    """The file in parts, as llama.cpp's gguf-split writes them: the first has all metadata."""
    reader = gguf.GGUFReader(path)
    names = [path.with_name(f"{path.stem}-{number + 1:05}-of-{parts:05}.gguf") for number in range(parts)]
    for number, name in enumerate(names):
        writer = gguf.GGUFWriter(name, "llama")
        writer.kv_data[0].clear()
        if number == 0:
            for field in reader.fields.values():
                if not field.name.startswith("GGUF."):
                    sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    path.unlink()
    return names


def test_a_split_file_is_read_as_one(tmp_path: Path) -> None:
    written(tmp_path / "x.gguf", "mixtral", Kind.Q4_0)
    whole = open_source(tmp_path / "x.gguf")
    contents = {name: read_whole(tensor) for name, tensor in whole.tensors.items()}
    parts = split(tmp_path / "x.gguf", 3)
    source = open_source(parts[0])
    assert source.files == tuple(parts), "all parts belong to the fingerprint"
    assert source.decoder == whole.decoder
    assert source.tensors.keys() == contents.keys()
    for name, expected in contents.items():
        assert np.array_equal(read_whole(source.tensors[name]), expected), name


def test_parts_that_are_not_whole_are_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path / "x.gguf", "mixtral")
    first, second, third = split(tmp_path / "x.gguf", 3)
    with pytest.raises(SourceError, match=r"is not the first part; give x-00001-of-00003.gguf"):
        open_source(second)
    renamed = third.rename(tmp_path / "y.gguf")
    with pytest.raises(SourceError, match=r"its part x-00003-of-00003.gguf is not beside it"):
        open_source(first)
    with pytest.raises(SourceError, match=r"is one of 3 parts, but is not named like"):
        open_source(renamed)
    third.write_bytes(second.read_bytes())
    with pytest.raises(SourceError, match="says that it is another part than its name does"):
        open_source(first)
