"""Hostile packed models: each is refused with an error that names the file, the tensor and the reason."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels import _native
from tests.kernels.tiny_model import LLAMA, write_random_model

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
Header = dict[str, Any]


def load(folder: Path, max_context_tokens: int = 64) -> _native.Model:
    return _native.Model(
        str(folder),
        threads=1,
        kv_pages=2,
        max_sequences=1,
        max_step_tokens=8,
        max_context_tokens=max_context_tokens,
    )


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model") / "model", LLAMA, "sym_int4", 32)


@pytest.fixture
def folder(untouched: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(untouched, tmp_path / "model")


def split(folder: Path) -> tuple[Header, bytes]:
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(folder: Path, header: Header | bytes, data: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if length is None:
        text += b" " * (-(8 + len(text)) % 64)
        length = len(text)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + text + data)


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(_native.PackedFileError) as caught:
        load(folder)
    for part in parts:
        assert part in str(caught.value)


def test_the_untouched_model_loads(folder: Path) -> None:
    assert load(folder).vocab_size == LLAMA["vocab_size"]
    header, data = split(folder)
    join(folder, header, data)
    assert load(folder).layers == LLAMA["num_hidden_layers"]


def _set(name: str, key: str, value: Any) -> Callable[[Header], None]:
    return lambda header: header[name].__setitem__(key, value)


def _drop(name: str) -> Callable[[Header], None]:
    def drop(header: Header) -> None:
        header[name + ".x"] = header.pop(name)

    return drop


def _shift(name: str, begin: int, end: int) -> Callable[[Header], None]:
    def shift(header: Header) -> None:
        offsets = header[name]["data_offsets"]
        offsets[0] += begin
        offsets[1] += end

    return shift


def _same_place(header: Header) -> None:
    other = header[Q_PROJ.replace("layers.0", "layers.1")]
    other["data_offsets"] = header[Q_PROJ]["data_offsets"]


TENSOR_FAULTS: list[tuple[str, Callable[[Header], None], str]] = [
    (Q_PROJ, _set(Q_PROJ, "dtype", "F999"), "unknown dtype 'F999'"),
    (Q_PROJ, _set(Q_PROJ, "dtype", 8), "no dtype"),
    (Q_PROJ, _set(Q_PROJ, "dtype", "I8"), "not U8"),
    (NORM, _set(NORM, "dtype", "I32"), "not F32"),
    (Q_PROJ, _set(Q_PROJ, "shape", [1 << 62, 1 << 62]), "overflows"),
    (Q_PROJ, _set(Q_PROJ, "shape", [-1, -1]), "shape"),
    (Q_PROJ, _set(Q_PROJ, "shape", [1.5]), "shape"),
    (Q_PROJ, _set(Q_PROJ, "shape", "big"), "shape"),
    (Q_PROJ, _set(Q_PROJ, "shape", [1] * 100), "shape"),
    (Q_PROJ, _set(Q_PROJ, "shape", [1, 2304]), "its shape is not [2, 1152]"),
    (Q_PROJ, _set(Q_PROJ, "shape", [2, 1153]), "bytes"),
    (NORM, _set(NORM, "shape", [2, 32]), "its shape is not [64]"),
    (Q_PROJ, _set(Q_PROJ, "data_offsets", [0]), "data_offsets"),
    (Q_PROJ, _set(Q_PROJ, "data_offsets", [-64, 64]), "data_offsets"),
    (Q_PROJ, _set(Q_PROJ, "data_offsets", [1 << 63, 1 << 64]), "data_offsets"),
    (Q_PROJ, _set(Q_PROJ, "data_offsets", [640, 0]), "begins after its end"),
    (Q_PROJ, _set(Q_PROJ, "data_offsets", [0, 1 << 62]), "past the end of the file"),
    (Q_PROJ, _shift(Q_PROJ, 0, 64), "bytes"),
    (Q_PROJ, _shift(Q_PROJ, 64, 64), "gap"),
    (Q_PROJ.replace(".0.", ".1."), _same_place, "overlaps"),
    (Q_PROJ, _drop(Q_PROJ), "missing"),
    (NORM, _drop(NORM), "missing"),
]


@pytest.mark.parametrize(("tensor", "change", "reason"), TENSOR_FAULTS)
def test_a_tensor_that_lies(folder: Path, tensor: str, change: Callable[[Header], None], reason: str) -> None:
    header, data = split(folder)
    change(header)
    join(folder, header, data)
    refused(folder, "model.safetensors", "tensor '", reason)
    if "gap" not in reason and "overlaps" not in reason:
        refused(folder, tensor)


MATRIX_FAULTS: list[tuple[str, Any, str]] = [
    ("type", "nf3", "nf3"),
    ("type", None, "type"),
    ("type", "fp32", "group"),
    ("type", "asym_int4", "shape"),
    ("rows", 0, "rows"),
    ("rows", -32, "rows"),
    ("rows", 1 << 40, "rows"),
    ("rows", 64.0, "rows"),
    ("rows", 63, "the description demands"),
    ("rows", 65, "shape"),
    ("cols", 33, "cols"),
    ("cols", 1 << 62, "cols"),
    ("cols", 128, "shape"),
    ("group", 16, "group"),
    ("group", 128, "group"),
    ("group", 1 << 40, "group"),
    ("group", 64, "shape"),
    ("table", [0] * 16, "has none"),
]

TABLE_FAULTS: list[tuple[Any, str]] = [
    (None, "0 entries"),
    ([], "0 entries"),
    ([1] * 15, "15 entries"),
    ([1] * 15 + [128], "128 is not in"),
    ([1] * 15 + [-128], "-128 is not in"),
    ([1] * 15 + [0.5], "entries"),
    ("0123456789abcdef", "entries"),
]


@pytest.mark.parametrize(("table", "reason"), TABLE_FAULTS)
def test_a_table_that_lies(tmp_path: Path, table: Any, reason: str) -> None:
    folder = write_random_model(tmp_path / "nf4", kind="lut4")
    header, data = split(folder)
    matrices = json.loads(header["__metadata__"]["matrices"])
    matrices[Q_PROJ]["table"] = table
    if table is None:
        del matrices[Q_PROJ]["table"]
    header["__metadata__"]["matrices"] = json.dumps(matrices)
    join(folder, header, data)
    refused(folder, "model.safetensors", Q_PROJ, "table", reason)


@pytest.mark.parametrize(("key", "value", "reason"), MATRIX_FAULTS)
def test_a_matrix_that_lies(folder: Path, key: str, value: Any, reason: str) -> None:
    header, data = split(folder)
    matrices = json.loads(header["__metadata__"]["matrices"])
    matrices[Q_PROJ][key] = value
    header["__metadata__"]["matrices"] = json.dumps(matrices)
    join(folder, header, data)
    refused(folder, "model.safetensors", Q_PROJ, reason)


def test_matrices_that_share_an_input_share_a_group(tmp_path: Path) -> None:
    """k_proj of another group, in a file that is otherwise sound."""
    config = {**LLAMA, "intermediate_size": 128}
    name = Q_PROJ.replace("q_proj", "k_proj")
    folder, other = (write_random_model(tmp_path / str(g), config, "sym_int4", g) for g in (32, 64))
    header, data = split(folder)
    donor, donor_data = split(other)
    matrices = json.loads(header["__metadata__"]["matrices"])
    matrices[name] = json.loads(donor["__metadata__"]["matrices"])[name]
    header["__metadata__"]["matrices"] = json.dumps(matrices)
    begin, end = header[name]["data_offsets"]
    foreign = donor_data[slice(*donor[name]["data_offsets"])]
    change = len(foreign) - (end - begin)
    for key, tensor in header.items():
        if key != "__metadata__" and tensor["data_offsets"][0] >= end:
            tensor["data_offsets"] = [offset + change for offset in tensor["data_offsets"]]
    header[name] = {**donor[name], "data_offsets": [begin, end + change]}
    join(folder, header, data[:begin] + foreign + data[end:])
    refused(folder, name, "share its input")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("format", "pt", "format is 'pt'"),
        ("format", None, "format"),
        ("layout_version", "3", "layout_version is '3'; this version of Redoubt reads '2'"),
        ("layout_version", "1", "redoubt convert OLD_FOLDER NEW_FOLDER"),
        ("layout_version", 2, "layout_version"),
        ("matrices", "{", "matrices"),
        ("matrices", "[]", "matrices"),
        ("matrices", "{}", "is not described in matrices"),
        ("matrices", '{"no.such.tensor": {"type": "fp32", "rows": 1, "cols": 1, "group": 0}}', "no.such.tensor"),
    ],
)
def test_metadata_that_lies(folder: Path, key: str, value: Any, reason: str) -> None:
    header, data = split(folder)
    header["__metadata__"][key] = value
    join(folder, header, data)
    refused(folder, "model.safetensors", reason)


def test_a_header_without_metadata(folder: Path) -> None:
    header, data = split(folder)
    del header["__metadata__"]
    join(folder, header, data)
    refused(folder, "no __metadata__")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": 1}', "no __metadata__"),
        (b'{"__metadata__": 1, "a": 1}', "no __metadata__"),
        (b'{"a": {}, "a": {}}', "twice"),
        (b'{"a": ' + b"[" * 200_000, "deep"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\x01"}', "control character"),
        (b'{"a": 01}', "leading zero"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": NaN}', "JSON"),
        (b'{"a": tru}', "JSON"),
        (b'{"a": 1,}', "JSON"),
        (b'{"a": 1} x', "after the value"),
        (b'{"a": "', "without an end"),
        (b"\xff\xfe", "JSON"),
    ],
)
def test_a_header_that_is_no_header(folder: Path, text: bytes, reason: str) -> None:
    join(folder, text, b"")
    refused(folder, "model.safetensors", reason)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000, 200_000_000])
def test_a_header_longer_than_the_file(folder: Path, length: int) -> None:
    join(folder, b"{}", b"", length)
    refused(folder, "model.safetensors", "header")


def test_an_unaligned_tensor(folder: Path) -> None:
    header, data = split(folder)
    text = json.dumps(header).encode()
    join(folder, text + b" " * (-(8 + len(text)) % 64 + 8), data, len(text) + (-(8 + len(text)) % 64 + 8))
    refused(folder, "multiple of 64 bytes")


def test_files_cut_short_or_too_long(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    for length in (0, 7, 9, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        refused(folder, "model.safetensors")
    path.write_bytes(raw + b"\0")
    refused(folder, "after the last tensor")


def test_things_that_are_no_files(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load(folder)
    path.mkdir()
    refused(folder, "not a regular file")
    path.rmdir()
    os.mkfifo(path)
    refused(folder, "not a regular file")


def test_random_damage_to_the_header_never_crashes(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    rng = random.Random(0)
    refusals = 0
    for _ in range(400):
        damaged = bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(8 + length)] = rng.choice(b'0123456789"{}[],:-e.\\\x00\xff')
        path.write_bytes(damaged)
        try:
            load(folder)
        except _native.PackedFileError:
            refusals += 1
    assert refusals > 100


def test_a_page_is_sized_before_loading(folder: Path) -> None:
    layers, kv_heads, head_dim, tokens = 2, 2, 16, 32
    values = 2 * layers * kv_heads * head_dim * tokens
    assert _native.Model.kv_page_bytes(str(folder), "bf16") == 2 * values
    assert _native.Model.kv_page_bytes(str(folder), "fp32") == 4 * values
    assert _native.Model.kv_page_bytes(str(folder), "int8") == values + 2 * 2 * layers * kv_heads * tokens
    assert _native.Model.kv_page_bytes(str(folder), "int16") == 2 * values + 2 * 2 * layers * kv_heads * tokens
    with pytest.raises(ValueError, match="kv_type: 'int3' is not int16, bf16, int8, fp32 or auto"):
        _native.Model.kv_page_bytes(str(folder), "int3")
