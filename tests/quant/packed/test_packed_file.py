import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from kernels import _native
from quant.codes.int4 import dequantize_int4, quantize_asym_int4, quantize_sym_int4
from quant.codes.int8 import dequantize_int8, quantize_int8
from quant.codes.lut4 import NF4, dequantize_lut4, quantize_lut4
from quant.codes.matrix import F32, U8, QuantizedMatrix, WeightType
from quant.errors import SourceError
from quant.families.registry import describe
from quant.packed.packed_file import PackedFile, PackedPlan, PackedWriter
from quant.packed.packed_matrix import MatrixInfo, pack_float, pack_quantized, unpack_quantized
from tests.quant.checkpoints import CONFIG
from tests.quant.packed import reference_pack
from tests.sizes import some

QUANTIZERS: dict[str, Callable[[str, F32, int], QuantizedMatrix]] = {
    "sym_int4": quantize_sym_int4,
    "asym_int4": quantize_asym_int4,
    "lut4": partial(quantize_lut4, table=NF4),
    "int8": quantize_int8,
}
DECODER = describe(CONFIG, "test")
SHAPES = [(32, 128), (64, 256), (1, 128), (33, 128), (47, 384), (16, 512)]


def random_matrix(rows: int, cols: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


def reference(matrix: QuantizedMatrix) -> U8:
    if matrix.type == "int8":
        return reference_pack.pack_int8(matrix.codes, matrix.scales)
    return reference_pack.pack_int4(matrix.codes, matrix.scales, matrix.minima)


@pytest.mark.parametrize(("shape", "group"), some(SHAPES, [32, 64, 128]))
@pytest.mark.parametrize("kind", ["sym_int4", "asym_int4", "lut4", "int8"])
def test_integer_layout(kind: WeightType, shape: tuple[int, int], group: int) -> None:
    rows, cols = shape
    matrix = QUANTIZERS[kind]("w", random_matrix(rows, cols), group)
    info = MatrixInfo(kind, rows, cols, group, matrix.table)
    packed = pack_quantized(matrix)
    assert packed.shape == (info.tiles, info.tile_bytes)
    assert packed.size == _native.packed_bytes(kind, rows, cols, group)
    assert np.array_equal(packed, reference(matrix))
    again = unpack_quantized(packed, info)
    assert np.array_equal(again.codes, matrix.codes)
    assert np.array_equal(again.scales, matrix.scales)
    assert again.table == matrix.table
    if matrix.minima is None:
        assert again.minima is None
    else:
        assert again.minima is not None
        assert np.array_equal(again.minima, matrix.minima)


@pytest.mark.parametrize(("rows", "cols"), [(32, 64), (33, 66), (1, 2)])
@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32"])
def test_float_layout(kind: WeightType, rows: int, cols: int) -> None:
    values = random_matrix(rows, cols)
    packed = pack_float(values, kind)
    assert packed.size == _native.packed_bytes(kind, rows, cols, 0)
    assert np.array_equal(packed, reference_pack.pack_float(values, kind))


def test_one_byte_of_the_layout_by_hand() -> None:
    codes = np.zeros((32, 32), np.uint8)
    codes[17, 9], codes[17, 13] = 5, 11  # second half of the outputs, lane 1; kb 1, i 1, low and high
    packed = reference_pack.pack_int4(codes, np.zeros((32, 1), np.float16))
    position = (1 * 2 + 1) * 64 + 4 * 1 + 1
    assert packed[0, position] == 5 | 11 << 4
    assert np.count_nonzero(packed) == 1


def write(path: Path, vectors: dict[str, F32]) -> tuple[PackedPlan, dict[str, F32]]:
    weights = {
        "a": random_matrix(40, 64, 1),
        "b": random_matrix(32, 64, 2),
        "c": random_matrix(7, 30, 3),
        "d": random_matrix(9, 5, 4),
        "e": random_matrix(33, 64, 5),
    }
    infos = {
        "a": MatrixInfo("sym_int4", 40, 64, 64, None),
        "b": MatrixInfo("int8", 32, 64, 32, None),
        "c": MatrixInfo("bf16", 7, 30, 0, None),
        "d": MatrixInfo("fp32", 9, 5, 0, None),
        "e": MatrixInfo("lut4", 33, 64, 64, NF4),
    }
    plan = PackedPlan(DECODER, infos, {name: len(v) for name, v in vectors.items()}, "sym_int4", 64, "test sha256:0")
    packed = {
        "a": pack_quantized(quantize_sym_int4("a", weights["a"], 64)),
        "b": pack_quantized(quantize_int8("b", weights["b"], 32)),
        "c": pack_float(weights["c"], "bf16"),
        "d": pack_float(weights["d"], "fp32"),
        "e": pack_quantized(quantize_lut4("e", weights["e"], 64, NF4)),
    }
    with PackedWriter(path, plan) as writer:
        for name, _ in plan.order():
            if name in packed:
                writer.write_tensor(name, [packed[name][:1], packed[name][1:]])
            elif name in vectors:
                writer.write_tensor(name, [vectors[name]])
    return plan, weights


@pytest.mark.parametrize("sizes", [(), (16,), (16, 32), (5,), (16, 5), (5, 7, 16, 3)])
def test_any_reader_opens_it_and_every_tensor_is_aligned(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    path = tmp_path / "model.safetensors"
    vectors = {f"v{i}": np.arange(size, dtype=np.float32) + i for i, size in enumerate(sizes)}
    plan, weights = write(path, vectors)
    assert path.stat().st_size == plan.size_bytes()
    header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + header_bytes])
    for name, entry in header.items():
        if name != "__metadata__" and not name.startswith("redoubt.padding"):
            assert (8 + header_bytes + entry["data_offsets"][0]) % 64 == 0
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    assert metadata["format"] == "redoubt-packed"
    assert metadata["layout_version"] == "2"
    assert json.loads(metadata["decoder"]) == DECODER.to_dict()
    assert json.loads(metadata["matrices"])["a"] == {"type": "sym_int4", "rows": 40, "cols": 64, "group": 64}
    loaded = load_file(path)
    for name, values in vectors.items():
        assert np.array_equal(loaded[name], values)
    ours = PackedFile(path)
    assert sorted(ours.vectors) == sorted(vectors)
    assert np.array_equal(ours.dequantize("a"), dequantize_int4(quantize_sym_int4("a", weights["a"], 64)))
    assert np.array_equal(ours.dequantize("b"), dequantize_int8(quantize_int8("b", weights["b"], 32)))
    np.testing.assert_allclose(ours.dequantize("c"), weights["c"], rtol=2.0**-8)
    assert np.array_equal(ours.dequantize("d"), weights["d"])
    assert np.array_equal(ours.dequantize("e"), dequantize_lut4(quantize_lut4("e", weights["e"], 64, NF4)))
    for name, info in ours.matrices.items():
        native = _native.PackedMatrix(loaded[name], info.type, info.rows, info.cols, info.group, table=info.table)
        assert np.array_equal(native.dequantize(), ours.dequantize(name))


def test_a_writer_that_is_left_early_or_out_of_order_fails(tmp_path: Path) -> None:
    plan = PackedPlan(DECODER, {}, {"v": 16, "w": 16}, "fp32", 0, "test")
    with pytest.raises(AssertionError, match="v was planned"), PackedWriter(tmp_path / "a", plan):
        pass
    with pytest.raises(AssertionError, match="w comes where v"), PackedWriter(tmp_path / "b", plan) as writer:
        writer.write_tensor("w", [np.zeros(16, np.float32)])
    with (
        pytest.raises(AssertionError, match="32 bytes written, 64 planned"),
        PackedWriter(tmp_path / "c", plan) as writer,
    ):
        writer.write_tensor("v", [np.zeros(8, np.float32)])


def test_the_reader_refuses_what_is_not_packed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(4, np.float32)}, path, {"format": "pt"})
    with pytest.raises(SourceError, match="is not a redoubt-packed file"):
        PackedFile(path)
    entries = json.dumps({"a": {"type": "int8", "rows": 32, "cols": 32, "group": 32}})
    metadata = {"format": "redoubt-packed", "layout_version": "2", "matrices": entries}
    save_file({"a": np.zeros((1, 64), np.uint8)}, path, metadata)
    with pytest.raises(SourceError, match="'a' does not hold what"):
        PackedFile(path)
    save_file({"a": np.zeros(4, np.uint8)}, path, metadata | {"matrices": "[1"})
    with pytest.raises(SourceError, match="'matrices' metadata is damaged"):
        PackedFile(path)
    for decoder in ({}, {"decoder": "{}"}, {"decoder": json.dumps({**DECODER.to_dict(), "kinds": [{"mlp": 1}]})}):
        save_file({"a": np.zeros(4, np.uint8)}, path, metadata | {"matrices": "{}"} | decoder)
        with pytest.raises(SourceError, match="'decoder' metadata is damaged"):
            PackedFile(path)


@pytest.mark.parametrize("write_bytes", [64, 1000, 1 << 20])
def test_pieces_arrive_whole_wherever_writes_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_bytes: int
) -> None:
    monkeypatch.setattr("quant.packed.packed_file._WRITE_BYTES", write_bytes)
    vectors = {name: np.arange(size, dtype=np.float32) for name, size in [("v", 256), ("w", 5), ("x", 1000)]}
    plan, _ = write(tmp_path / "model.safetensors", vectors)
    loaded = load_file(tmp_path / "model.safetensors")
    assert all(np.array_equal(loaded[name], values) for name, values in vectors.items())
    assert (tmp_path / "model.safetensors").stat().st_size == plan.size_bytes()
