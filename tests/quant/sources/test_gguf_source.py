from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from quant.codes.dequantize import dequantize
from quant.codes.int4 import dequantize_int4
from quant.codes.int8 import dequantize_int8
from quant.codes.matrix import F32, QuantizedMatrix
from quant.conversion.convert import convert
from quant.errors import SourceError, TensorError, UnsupportedModelError
from quant.packed.packed_file import PackedFile
from quant.sources.ggml_blocks import BLOCK_TYPES
from quant.sources.gguf_config import llama3_factors
from quant.sources.open_source import open_source
from quant.sources.source import SourceTensor
from tests.quant.checkpoints import CONFIG, gguf_name, permuted, random_tensors, write_gguf, write_random_blocks

QUERY = "model.layers.1.self_attn.q_proj.weight"


def values_of(tensor: SourceTensor, begin: int = 0, end: int | None = None) -> F32:
    rows = tensor.read(begin, tensor.shape[0] if end is None else end)
    if not isinstance(rows, QuantizedMatrix):
        return rows
    return dequantize_int8(rows) if rows.type == "int8" else dequantize_int4(rows)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_float_tensors_come_back_exactly_with_hugging_face_names_and_rows(tmp_path: Path, kind: Kind) -> None:
    tensors = random_tensors(CONFIG)
    source = open_source(write_gguf(tmp_path / "x.gguf", tensors, kind=kind))
    assert set(source.tensors) == set(tensors)
    for name, values in tensors.items():
        assert np.array_equal(values_of(source.tensors[name]), values), name
    assert np.array_equal(values_of(source.tensors[QUERY], 32, 96), tensors[QUERY][32:96])
    assert np.array_equal(values_of(source.tensors[QUERY], 5, 7), tensors[QUERY][5:7])


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_codes_stand_for_what_ggml_says(tmp_path: Path, kind: Kind) -> None:
    tensors = random_tensors(CONFIG)
    source = open_source(write_gguf(tmp_path / "x.gguf", tensors, kind=kind))
    for name, values in tensors.items():
        if values.ndim == 2:
            expected = gguf.dequantize(gguf.quantize(values, kind), kind)
            assert source.tensors[name].group == 32
            assert np.array_equal(values_of(source.tensors[name]), expected), name


# Where a block keeps its fp16 numbers.
HALVES = {
    Kind.Q4_0: (0,), Kind.Q4_1: (0, 2), Kind.Q8_0: (0,), Kind.Q6_K: (208,), Kind.Q5_0: (0,), Kind.Q5_1: (0, 2),
    Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q3_K: (108,), Kind.Q2_K: (80, 82), Kind.IQ4_NL: (0,), Kind.IQ4_XS: (0,),
    Kind.MXFP4: (),
}  # fmt: skip


@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.name)
def test_random_blocks_of_every_type_are_read_like_ggml_does(kind: Kind) -> None:
    generator = np.random.default_rng(0)
    size, block = gguf.GGML_QUANT_SIZES[kind]
    raw = generator.integers(0, 256, (6, 512 // size * block), np.uint8)
    for at in HALVES[kind]:
        values = generator.uniform(-2, 2, (6, 512 // size)).astype(np.float16)
        raw.reshape(6, -1, block)[..., at : at + 2] = values.view(np.uint8).reshape(6, -1, 2)
    if kind is Kind.MXFP4:  # its scale is a power of two, here one of fp16's
        raw.reshape(6, -1, block)[..., 0] = generator.integers(104, 144, (6, 512 // size))
    kept = BLOCK_TYPES[kind.name]
    rows = kept.decode(raw)
    expected = gguf.dequantize(raw, kind)
    if isinstance(rows, QuantizedMatrix):
        assert (rows.type, rows.group, rows.table) == (kept.stored, kept.group, kept.table)
        rows = dequantize(rows)
    else:
        assert kept.stored in ("other", "other_fine")
    if kept.rounded_scales:  # scales and minima are rounded to fp16, and cancel where they are alike
        size_of_terms = np.abs(expected) + 15 * 63 * 2
        assert (np.abs(rows - expected) <= 2.0**-10 * size_of_terms).all()
        assert np.abs(rows - expected).mean() < 2.0**-11 * np.abs(expected).mean()
    else:
        assert np.array_equal(rows, expected)


def test_every_type_but_the_exotic_ones_is_read() -> None:
    assert {"F32", "F16", "BF16"} | {kind.name for kind in HALVES} == BLOCK_TYPES.keys()


@pytest.mark.parametrize("kind", [Kind.IQ4_NL, Kind.Q4_K])
def test_codes_of_more_types_are_kept(tmp_path: Path, kind: Kind) -> None:
    config = {**CONFIG, "hidden_size": 256, "intermediate_size": 256}
    shapes = {name: values.shape for name, values in random_tensors(config).items()}
    path = write_random_blocks(tmp_path / "x.gguf", shapes, config, kind)
    convert(path, tmp_path / "out", method="rtn", progress=False)
    packed = PackedFile(tmp_path / "out" / "model.safetensors")
    source = open_source(path)
    for name in packed.matrices:
        stored = source.tensors[name].read(0, shapes[name][0])
        assert isinstance(stored, QuantizedMatrix)
        kept = packed.codes(name)
        assert (kept.type, kept.table) == (stored.type, stored.table)
        assert np.array_equal(kept.codes, stored.codes)
        assert np.array_equal(kept.scales, stored.scales)
    assert any("Q4_K" in note for note in source.notes) == (kind is Kind.Q4_K)


def test_qwen_rows_are_not_permuted(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "qwen2"}
    tensors = random_tensors(config)
    source = open_source(write_gguf(tmp_path / "x.gguf", tensors, config, arch="qwen2"))
    assert source.config["model_type"] == "qwen2"
    assert source.config["attention_bias"] is True
    assert np.array_equal(values_of(source.tensors[QUERY]), tensors[QUERY])
    bias = QUERY.replace("weight", "bias")
    assert np.array_equal(values_of(source.tensors[bias]), tensors[bias])


def test_biases_of_llama_are_permuted_too(tmp_path: Path) -> None:
    config = {**CONFIG, "attention_bias": True}
    tensors = random_tensors(config)
    source = open_source(write_gguf(tmp_path / "x.gguf", tensors, config))
    for name, values in tensors.items():
        assert np.array_equal(values_of(source.tensors[name]), values), name


def test_qwen3_has_head_norms_and_its_own_head_size(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "qwen3", "head_dim": 64}
    tensors = random_tensors(config)
    extra = {"qwen3.attention.key_length": 64, "qwen3.attention.value_length": 64}
    source = open_source(write_gguf(tmp_path / "x.gguf", tensors, config, arch="qwen3", extra=extra))
    assert source.config["head_dim"] == 64
    assert source.tensors[QUERY].shape == (256, 128)
    assert source.tensors["model.layers.0.self_attn.q_norm.weight"].shape == (64,)


def test_config(tmp_path: Path) -> None:
    config = open_source(write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG))).config
    for key, value in CONFIG.items():
        assert config[key] == value, key
    assert config["head_dim"] == 32
    assert config["rope_scaling"] is None


def test_a_file_without_output_has_a_tied_head(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    del tensors["lm_head.weight"]
    assert open_source(write_gguf(tmp_path / "x.gguf", tensors)).config["tie_word_embeddings"] is True


def test_rope_scaling(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    config = open_source(write_gguf(tmp_path / "linear.gguf", tensors, extra=linear)).config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 256,
    }
    config = open_source(write_gguf(tmp_path / "yarn.gguf", tensors, extra=yarn)).config
    assert config["rope_scaling"] == {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
    with pytest.raises(UnsupportedModelError, match="'longrope' is not supported"):
        open_source(write_gguf(tmp_path / "long.gguf", tensors, extra={"llama.rope.scaling.type": "longrope"}))


def test_llama3_scaling_is_found_in_its_factors(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {**CONFIG, "rope_theta": 500000.0}
    factors = llama3_factors(scaling, 500000.0, 32)
    assert np.median(factors) > 1.0 or factors.min() == 1.0
    path = write_gguf(tmp_path / "x.gguf", tensors, config, extra_tensors={"rope_freqs.weight": factors})
    source = open_source(path)
    assert source.config["rope_scaling"] == scaling
    assert "rope_freqs.weight" not in source.tensors
    other = write_gguf(tmp_path / "y.gguf", tensors, config, extra_tensors={"rope_freqs.weight": factors * 1.5})
    with pytest.raises(UnsupportedModelError, match="not those of Llama 3"):
        open_source(other)


@pytest.mark.parity
def test_llama3_factors_are_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    }
    config = LlamaConfig(head_dim=64, rope_parameters=scaling, max_position_embeddings=131072)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / frequencies.numpy(), llama3_factors(scaling, 500000.0, 64), rtol=1e-5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts by sigmoid": (
        {"llama.expert_count": 8, "llama.expert_gating_func": 2},
        "'llama.expert_gating_func' is 2: not supported",
    ),
    "groups of experts": (
        {"llama.expert_count": 8, "llama.expert_group_count": 4},
        "'llama.expert_group_count' is 4: not supported",
    ),
    "scaled experts": (
        {"llama.expert_count": 8, "llama.expert_weights_scale": 2.5},
        "'llama.expert_weights_scale' is not supported",
    ),
    "partial rotary": ({"llama.rope.dimension_count": 16}, "rotary embedding of a part"),
    "scaling": ({"llama.rope.scaling.attn_factor": 2.0}, r"key 'llama.rope.scaling.attn_factor' is not supported"),
    "key and value sizes": ({"llama.attention.value_length": 16}, "keys and values of different sizes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_engine_does_not_run_is_refused(tmp_path: Path, case: str) -> None:
    extra, message = REFUSED[case]
    path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG), extra=extra)
    with pytest.raises(UnsupportedModelError, match=message):
        open_source(path)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"llama.block_count": None}, "lacks the metadata key 'llama.block_count'"),
    "type": ({"llama.block_count": "two"}, "'llama.block_count' is 'two'"),
    "float": ({"llama.embedding_length": 128.0}, "'llama.embedding_length' is 128.0"),
    "no heads": ({"llama.attention.head_count": 0}, "0 heads"),
    "odd heads": ({"llama.attention.head_count": 3}, "3 heads do not divide"),
    "kv heads": ({"llama.attention.head_count_kv": 3}, "do not fit together"),
    "epsilon": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "rms_norm_eps is 0"),
    "infinite theta": ({"llama.rope.freq_base": float("inf")}, "not a finite number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_metadata_is_named(tmp_path: Path, case: str) -> None:
    extra, message = WRONG[case]
    path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG), extra=extra)
    with pytest.raises(SourceError, match=message):
        open_source(path)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {}, arch="rwkv7")
    with pytest.raises(UnsupportedModelError, match="'rwkv7' is not supported; supported: llama, qwen2, qwen3"):
        open_source(path)


def test_another_tensor_type_is_refused_by_name(tmp_path: Path) -> None:
    config = {**CONFIG, "hidden_size": 256}
    path = write_random_blocks(tmp_path / "x.gguf", {"model.embed_tokens.weight": (320, 256)}, config, Kind.Q8_K)
    with pytest.raises(UnsupportedModelError, match=r"'token_embd.weight' is Q8_K; supported: F32, F16"):
        open_source(path)


def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "x.gguf", random_tensors(CONFIG), extra_tensors={"blk.0.ssm_a": np.ones(4, np.float32)}
    )
    with pytest.raises(SourceError, match=r"tensor 'blk.0.ssm_a'"):
        open_source(path)


def test_the_embedded_model_is_read_and_converted_like_ggml_reads_it(
    embedded_gguf: Path, embedded_reader: gguf.GGUFReader, tmp_path: Path
) -> None:
    source = open_source(embedded_gguf)
    assert source.config["num_hidden_layers"] == 30
    assert source.config["tie_word_embeddings"] is True
    stored = {tensor.name: tensor for tensor in embedded_reader.tensors}
    assert len(source.tensors) == len(stored) == 272
    report = convert(embedded_gguf, tmp_path / "out", method="rtn", progress=False)
    assert (report.qtype, report.group_size, report.matrices) == ("asym_int4", 32, 211)
    file = PackedFile(tmp_path / "out" / "model.safetensors")
    for name, tensor in source.tensors.items():
        expected = gguf.dequantize(stored[gguf_name(name)].data, stored[gguf_name(name)].tensor_type)
        heads = {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2])
        values = [values_of(tensor), *([file.dequantize(name)] if name in file.matrices else [])]
        assert all(np.array_equal(permuted(each, heads) if heads else each, expected) for each in values), name
    assert len(file.matrices) == 211
    assert len(load_file(tmp_path / "out/model.safetensors")) == 272


def test_stored_types_of_the_embedded_model(embedded_gguf: Path) -> None:
    stored = [tensor.stored for tensor in open_source(embedded_gguf).tensors.values()]
    assert {kind: stored.count(kind) for kind in set(stored)} == {"asym_int4": 210, "fp32": 61, "int8": 1}


def test_a_code_that_q8_0_does_not_use_is_named(tmp_path: Path) -> None:
    from quant.conversion.convert import convert

    path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG), kind=Kind.Q8_0)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    with path.open("r+b") as file:
        file.seek(tensor.data_offset + 2)
        file.write(b"\x80")
    with pytest.raises(TensorError, match=r"layers.0.mlp.up_proj.weight'.*-128"):
        convert(path, tmp_path / "out", method="rtn", progress=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_queries_keys_and_values_in_one_matrix(tmp_path: Path, arch: str) -> None:
    """As llama.cpp's converter writes with --fuse-qkv: rows as they would be apart, one after the other."""
    tensors = random_tensors({**CONFIG, "model_type": arch})
    apart = open_source(write_gguf(tmp_path / "apart.gguf", tensors, {**CONFIG, "model_type": arch}, arch=arch))
    joined: dict[str, list[F32]] = {}
    for name in [name for name in tensors if "_proj" in name and "self_attn" in name and "o_proj" not in name]:
        values, part = tensors[name], name.split(".")[-2]
        heads = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}
        rows = permuted(values, heads[part]) if arch == "llama" and part in heads else values
        joined.setdefault(f"blk.{name.split('.')[2]}.attn_qkv.{name.rpartition('.')[2]}", []).append(rows)
    rest = {name: each for name, each in tensors.items() if "self_attn" not in name or "o_proj" in name}
    fused = {name: np.concatenate(parts) for name, parts in joined.items()}
    path = write_gguf(tmp_path / "fused.gguf", rest, {**CONFIG, "model_type": arch}, arch=arch, extra_tensors=fused)
    source = open_source(path)
    for name, tensor in apart.tensors.items():
        wanted = np.asarray(tensor.read(0, tensor.shape[0]))
        assert np.array_equal(np.asarray(source.tensors[name].read(0, tensor.shape[0])), wanted), name
